-- Every script of the Redis store, by name. One record a call; all keys of a call lie in one slot, so that a cluster
-- runs it as a single server does. The first argument is the time in microseconds where a test sets the clock, and
-- empty otherwise: then the server's own. AT, DIGITS and HEAD are put before each script by stores/redis.py.

-- name: prelude
-- What all scripts share.
local function time(given)
    if given ~= '' then return tonumber(given) end
    local now = redis.call('TIME')
    return tonumber(now[1]) * 1000000 + tonumber(now[2])
end
local function number(value) return string.format('%016.0f', value) end
local function field(record, name) return string.sub(record, AT[name][1], AT[name][2]) end

-- name: look
-- KEYS: record. The time to decide by, and the record.
return {time(ARGV[1]), redis.call('GET', KEYS[1])}

-- name: claim
-- KEYS: record, open, operation. Reserve a key that was never seen, else answer its record. Whether a claim is
-- one's own is told by its nonce, never by what this script did: an answer may be lost, and the call made again.
-- Nothing that is open expires: the time to live begins with the settlement.
local now = time(ARGV[1])
local record = redis.call('GET', KEYS[1])
if record then return {now, record} end
local id, state, nonce, operation = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease_us, deadline_us, dedup_us = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local lease_until = now + math.min(lease_us, deadline_us)
redis.call('SET', KEYS[1], table.concat({
    'S1', state, '0', number(now), number(lease_until), nonce, operation,
    number(now), number(now), number(now + deadline_us), number(now + dedup_us),
    BLANK, BLANK, BLANK, ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13],
}))
redis.call('ZADD', KEYS[2], lease_until, id)
redis.call('SET', KEYS[3], id)
return {now}

-- name: settle
-- KEYS: record, open. The holder's answer on its open record, and from here on the record's time to live. 0 for
-- anybody whose fence or nonce is no longer the record's, or whose record is no longer open: then read and decide.
local now = time(ARGV[1])
local record = redis.call('GET', KEYS[1])
if not record then return 0 end
local state = field(record, 'state')
if (state ~= '01' and state ~= '02') or field(record, 'fence') ~= ARGV[3] or field(record, 'nonce') ~= ARGV[4]
    or tonumber(field(record, 'lease_until')) == 0 then
    return 0
end
local answer_until = now + tonumber(field(record, 'answer_us'))
local forget_after = math.max(answer_until, now + tonumber(field(record, 'tombstone_us')))
local claimed = tonumber(field(record, 'claimed'))
local ttl = math.ceil((forget_after - now + tonumber(ARGV[9])) / 1000)
redis.call('SET', KEYS[1], table.concat({
    'S1', ARGV[5], ARGV[6], string.sub(record, AT.fence[1], AT.dedup_until[2]),
    number(now), number(answer_until), number(forget_after),
    string.sub(record, AT.answer_us[1], AT.claimed[2]), ARGV[7],
    string.sub(record, HEAD + 1, HEAD + claimed), ARGV[8],
}), 'PX', ttl)
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('PEXPIRE', ARGV[10] .. field(record, 'operation_id'), ttl)
return 1

-- name: replace
-- KEYS: record, open, unknown, operation, audit. Write over the version that was seen; nothing where it is another.
-- ARGV: time, id, seen, written, ms to live ('' for ever), state, lease_until, line of the audit trail ('' for none).
local record = redis.call('GET', KEYS[1])
if not record or string.sub(record, 1, string.len(ARGV[3])) ~= ARGV[3] then return 0 end
if ARGV[5] == '' then
    redis.call('SET', KEYS[1], ARGV[4])
    redis.call('SET', KEYS[4], ARGV[2])
else
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
    redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[5])
end
if ARGV[6] == '01' or ARGV[6] == '02' then
    redis.call('ZADD', KEYS[2], ARGV[7], ARGV[2])
else
    redis.call('ZREM', KEYS[2], ARGV[2])
end
if ARGV[6] == '06' then
    redis.call('ZADD', KEYS[3], ARGV[7], ARGV[2])
else
    redis.call('ZREM', KEYS[3], ARGV[2])
end
if ARGV[8] ~= '' then redis.call('RPUSH', KEYS[5], ARGV[8]) end
return 1

-- name: forget
-- KEYS: record, operation. Drop what was seen, and is over.
local record = redis.call('GET', KEYS[1])
if not record or string.sub(record, 1, string.len(ARGV[2])) ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('DEL', KEYS[2])
return 1

-- name: due
-- KEYS: open. The time, and the records whose lease is over, the oldest lease first.
local now = time(ARGV[1])
return {now, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])}

-- name: migrate
-- KEYS: meta. Written once; 0 where it is there.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'store_id', ARGV[2], 'schema_version', ARGV[3], 'epoch', '1', 'id_format', '1', 'secret_check', ARGV[4])
return 1
