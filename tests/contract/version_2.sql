-- What version 2 of the schema kept besides, in either dialect: two decisions, and what an agent saw.
-- Never changed: files and databases like this exist.

INSERT INTO decisions (key, outcome, decided, request, record, placed) VALUES
    ('k1', 'committed', 12.5, '{"asked":"k1"}', '{"agent":"a","round":7,"at":12.5,"policy":"default 1f","decided_us":30,"constraints":{"max_per_machine":2}}', '[["a",{"type":"small","priority":"spot"},"m1"],["b",{"type":"small","priority":"spot"},"m1"]]'),
    ('k9', 'declined', 13.5, '{"asked":"k9"}', '{"agent":"b","round":1,"position":1,"at":13.5,"policy":"default 1f","retries":2,"decided_us":50}', '[]');

INSERT INTO rounds (agent, number, revision, seen) VALUES
    ('a', 7, 1, '{"agent":"a","number":7,"revision":1,"seed":3}');
