-- A zone as version 1 of the schema kept it, in either dialect: two machines, two tenants, five revisions.
-- Never changed: files and databases like this exist.

INSERT INTO zone (catalogue, last, trimmed) VALUES (
    '{"name":"tiny","resources":[{"name":"cores","unit":"cores","per_unit":1},{"name":"memory","unit":"GiB","per_unit":1}],"bands":["regular","spot"],"generations":[{"name":"old","capacity":[4,8],"features":[]},{"name":"new","capacity":[6,6],"features":["fast"]}],"vm_types":[{"name":"small","family":"s","demand":{"old":[1,1],"new":[1,1]},"requires":[]},{"name":"big","family":"b","demand":{"old":[3,6],"new":[2,3]},"requires":[]},{"name":"whole","family":"w","demand":{"old":[4,8],"new":[6,6]},"requires":[]},{"name":"modern","family":"m","demand":{"new":[3,2]},"requires":[]}],"conflicts":[["loud","shy"],["single","single"]],"excluded":{}}',
    5, 0
);

INSERT INTO machines (
    name, spec, capacity_0, capacity_1, used_0, used_1,
    used, classes, vms, owner, state, health, failures, versions_behind, version
) VALUES
    ('m1', '["m1","dc1","c1","c1-r1","old",1,[],[4,8]]', 4, 8, 1, 1, '[0,0,1,1]', '[0,0,0]', 1, '', 0, 100, 0, 0, 2),
    ('m5', '["m5","dc1","c2","c2-r1","new",2,["fast"],[6,6]]', 6, 6, 1, 1, '[1,1,0,0]', '[0,0,0]', 1, 'u', 0, 70, 0, 0, 1);

INSERT INTO clusters (name, datacenter, generation, machines, quarantined) VALUES
    ('c1', 'dc1', 'old', 1, FALSE),
    ('c2', 'dc1', 'new', 1, TRUE);

INSERT INTO tenants (name, constraints, stamp, vms) VALUES
    ('t', '{"max_per_machine":2}', 5, 1),
    ('u', '{}', 3, 1);

INSERT INTO vms (name, tenant, machine, spec) VALUES
    ('a', 't', 'm1', '{"type":"small","priority":"spot"}'),
    ('c', 'u', 'm5', '{"type":"small","isolated":true}');

INSERT INTO feed (first, last, agent, round, entries) VALUES
    (1, 1, '', 0, '[{"key":"first","conditions":[["m5","health",100,70]],"added":[["m1","dc1","c1","c1-r1","old",1,[],[4,8]],["m5","dc1","c2","c2-r1","new",2,["fast"],[6,6]]]}]'),
    (2, 3, 'a', 7, '[{"key":"k1","tenant":"t","constraints":{"max_per_machine":2},"after":2,"placed":[["a",{"type":"small","priority":"spot"},"m1"],["b",{"type":"small","priority":"spot"},"m1"]],"versions":{"m1":1}},{"key":"k2","tenant":"u","after":3,"placed":[["c",{"type":"small","isolated":true},"m5"]],"versions":{"m5":1}}]'),
    (4, 4, '', 0, '[{"key":"k3","quarantines":[["c2",false,true]]}]'),
    (5, 5, 'b', 1, '[{"key":"k4","tenant":"t","constraints":{"max_per_machine":2},"before":2,"after":5,"released":[["b",{"type":"small","priority":"spot"},"m1"]],"versions":{"m1":2}}]');
