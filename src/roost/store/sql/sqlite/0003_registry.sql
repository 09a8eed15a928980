-- What those around the store agree on: values by kind and name.

CREATE TABLE registry (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- Whoever lists VMs asks for those of a tenant or of a machine, in the order of their names.
CREATE INDEX vms_by_tenant ON vms (tenant, name);
CREATE INDEX vms_by_machine ON vms (machine, name);

-- Whoever lists decisions begins with the latest, or where the last page ended.
DROP INDEX decisions_by_time;
CREATE INDEX decisions_by_time ON decisions (decided, key);
