-- The least that a claim and a completion can be: two statements by primary key, each a commit of its own.
\set a random(1, 9000000000000000000)
INSERT INTO bench_plain (k, fp, token, lease, expires, state)
VALUES (uuid_send(md5(:a::text)::uuid), '\x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff', 1,
        now() + interval '30 s', now() + interval '24 h', 1)
ON CONFLICT (k) DO NOTHING RETURNING token;
UPDATE bench_plain SET state = 2, status = 201, headers = :headers::bytea, body = :body::bytea
WHERE k = uuid_send(md5(:a::text)::uuid) AND token = 1 AND state = 1;
