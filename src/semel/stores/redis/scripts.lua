-- Every script of the Redis store, by name. One record a call; all keys of a call lie in one slot, so that a cluster
-- runs it as a single server does. The first argument is the time in microseconds where a test sets the clock, and
-- empty otherwise: then the server's own. What AT, HEAD, BLANK and field(record, '…') say is written into each script as
-- numbers by stores/redis/layout.py, since a table of places would be made anew at every call.
--
-- "flags" says allow-oom where a full server must not stand in the way: a command that has begun may end, and what is
-- over may go. It also makes a replica refuse the script, which "no-writes" does not. A claim has none: what is there is still replayed by a full
-- server, and its first write is refused.

-- name: prelude
-- What all scripts share.
local function time(given)
    if given ~= '' then return tonumber(given) end
    local now = redis.call('TIME')
    return tonumber(now[1]) * 1000000 + tonumber(now[2])
end
local function number(value) return string.format('%016.0f', value) end
local function readable(record)
    return string.sub(record, 1, 2) == 'S1' and string.find(string.sub(record, 3, HEAD), '^[%x ]+$')
        and string.len(record) > HEAD
end

local function first_due(sets, from, earliest)
    local elsewhere = {}
    for place = from, #sets do
        local due = redis.pcall('ZRANGE', sets[place], 0, 0, 'WITHSCORES')
        if due.err then
            elsewhere[#elsewhere + 1] = sets[place]
        elseif due[2] and (not earliest or tonumber(due[2]) < earliest) then
            earliest = tonumber(due[2])
        end
    end
    return earliest, elsewhere
end

-- name: look
-- flags: no-writes
-- KEYS: record. The time to decide by, and the record.
return {time(ARGV[1]), redis.call('GET', KEYS[1])}

-- name: claim
-- KEYS: record, operation, all, open, due, marker. Reserve a key that was never seen, else answer its record. The
-- marker is given where forgetting would be a second effect: while the server has it, it has neither been flushed nor
-- begun to evict, which would drop the marker first (EXISTS does not touch it). Without it nobody knows what this key
-- was for, and nothing is granted. Whether a claim
-- is one's own is told by its nonce, never by what this script did: an answer may be lost, and the call made again.
-- Nothing that is open expires: the time to live begins with the settlement. Its place in the order of creation is
-- after all that this slot holds, and after all that the caller has seen anywhere.
local now = time(ARGV[1])
local record = redis.call('GET', KEYS[1])
if record then return {now, record} end
if KEYS[6] and redis.call('EXISTS', KEYS[6]) == 0 then
    return redis.error_reply('LOSTRECORDS a marker of this store is gone: records may be gone with it')
end
local id, state, nonce, operation = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease_us, deadline_us, dedup_us = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local lease_until = now + math.min(lease_us, deadline_us)
local at = number(now)
redis.call('SET', KEYS[1], table.concat({
    'S1', state, '0', at, number(lease_until), nonce, operation,
    at, at, number(now + deadline_us), number(now + dedup_us),
    BLANK, BLANK, BLANK, number(lease_us), ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13],
}))
local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
local place = math.max(now, tonumber(ARGV[15]) + 1, last and tonumber(last) + 1 or 0)
redis.call('SET', KEYS[2], id)
redis.call('ZADD', KEYS[3], place, id)
redis.call('ZADD', KEYS[4], place, id)
if ARGV[14] == 'lease' then
    redis.call('ZADD', KEYS[5], lease_until, id)
elseif ARGV[14] == 'dedup' then
    redis.call('ZADD', KEYS[5], math.max(lease_until, now + dedup_us), id)
end
return {now, false, place}

-- name: settle
-- flags: allow-oom
-- KEYS: record, open, due. The holder's answer on its open record, and from here on the record's time to live. 0 for
-- anybody whose fence or nonce is no longer the record's, or whose record is no longer open: then read and decide.
local now = time(ARGV[1])
local record = redis.call('GET', KEYS[1])
if not record or not readable(record) then return 0 end
local state = field(record, 'state')
if (state ~= '01' and state ~= '02') or field(record, 'fence') ~= ARGV[3] or field(record, 'nonce') ~= ARGV[4]
    or tonumber(field(record, 'lease_until')) == 0 then
    return 0
end
local answer_until = now + tonumber(field(record, 'answer_us'))
local forget_after = math.max(answer_until, now + tonumber(field(record, 'tombstone_us')))
local claimed = tonumber(field(record, 'claimed'))
local ttl = string.format('%.0f', math.ceil((forget_after - now + tonumber(ARGV[9])) / 1000))
redis.call('SET', KEYS[1], table.concat({
    'S1', ARGV[5], ARGV[6], string.sub(record, AT.fence[1], AT.dedup_until[2]),
    number(now), number(answer_until), number(forget_after),
    string.sub(record, AT.lease_us[1], AT.claimed[2]), ARGV[7],
    string.sub(record, HEAD + 1, HEAD + claimed), ARGV[8],
}), 'PX', ttl)
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('PEXPIRE', ARGV[10] .. field(record, 'operation_id'), ttl)
return 1

-- name: renew
-- flags: allow-oom
-- KEYS: record, due. A living holder's sign of life on a PROCESSING record; 0 for every other case: read and decide.
local now = time(ARGV[1])
local record = redis.call('GET', KEYS[1])
if not record or not readable(record) or field(record, 'state') ~= '02' or field(record, 'fence') ~= ARGV[3]
    or field(record, 'nonce') ~= ARGV[4] or tonumber(field(record, 'lease_until')) == 0 then
    return 0
end
local deadline_at = tonumber(field(record, 'deadline_at'))
if now >= deadline_at then return 0 end
local lease_until = math.min(now + tonumber(field(record, 'lease_us')), deadline_at)
redis.call('SETRANGE', KEYS[1], AT.lease_until[1] - 1, number(lease_until))
local due = redis.call('ZSCORE', KEYS[2], ARGV[2])
if due and tonumber(due) < lease_until then redis.call('ZADD', KEYS[2], lease_until, ARGV[2]) end
return 1

-- name: replace
-- flags: allow-oom
-- KEYS: record, operation, all, open, due, audit. Write over the version that was seen; nothing where it is another.
-- ARGV: time, id, seen, written, ms to live ('' for ever), whether it is open or UNKNOWN, when its lapse is due
-- ('' for never), line of the audit trail ('' for none), the former operation's key ('' where it is the same).
local record = redis.call('GET', KEYS[1])
if not record or string.sub(record, 1, string.len(ARGV[3])) ~= ARGV[3] then return 0 end
if ARGV[9] ~= '' then redis.call('DEL', ARGV[9]) end
if ARGV[5] == '' then
    redis.call('SET', KEYS[1], ARGV[4])
    redis.call('SET', KEYS[2], ARGV[2])
else
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[5])
end
local place = redis.call('ZSCORE', KEYS[3], ARGV[2])
if not place then
    place = time(ARGV[1])
    redis.call('ZADD', KEYS[3], place, ARGV[2])
end
if ARGV[6] == '1' then redis.call('ZADD', KEYS[4], place, ARGV[2]) else redis.call('ZREM', KEYS[4], ARGV[2]) end
if ARGV[7] ~= '' then redis.call('ZADD', KEYS[5], ARGV[7], ARGV[2]) else redis.call('ZREM', KEYS[5], ARGV[2]) end
if ARGV[8] ~= '' then redis.call('RPUSH', KEYS[6], ARGV[8]) end
return 1

-- name: forget
-- flags: allow-oom
-- KEYS: record, operation, all, open, due. Drop what was seen ('' for a record that is gone by itself), and its places.
local record = redis.call('GET', KEYS[1])
if record and (ARGV[3] == '' or string.sub(record, 1, string.len(ARGV[3])) ~= ARGV[3]) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('ZREM', KEYS[5], ARGV[2])
return redis.call('ZREM', KEYS[3], ARGV[2])

-- name: due
-- flags: no-writes
-- KEYS: due. The time, and the records whose lapse is due, the oldest lease first.
local now = time(ARGV[1])
return {now, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])}

-- name: turn
-- flags: allow-oom,allow-cross-slot-keys
-- KEYS: turns, and the due sets of all tags (none in a cluster). ARGV: time, the turn that the caller has ('' for none),
-- microseconds between two turns, in a cluster the due sets that may be on this node. All processes take turns at
-- looking, so that the looks of a fleet are as far apart as those of one process: whoever looks takes the turn after the
-- last one that was taken. Where the last look is longer ago than it should be, a process that had a turn is gone: the
-- turns begin anew. Answers the time, the caller's next turn, the earliest that is due ('' for nothing), and the due sets
-- that are on other nodes.
local now, mine, every = time(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local earliest, elsewhere = first_due(ARGV, 4, first_due(KEYS, 2, nil))
earliest = earliest and string.format('%.0f', earliest) or ''
if mine and now < mine and mine < now + 100 * every then
    return {now, string.format('%.0f', mine), earliest, elsewhere}
end
local seen = redis.call('HMGET', KEYS[1], 'last', 'looked')
local last, looked = tonumber(seen[1]) or now, tonumber(seen[2]) or 0
if last < now or looked > now or now - looked > every * 1.5 then last = now end
local turn = math.min(last, now + 60 * every) + every
redis.call('HSET', KEYS[1], 'last', string.format('%.0f', turn), 'looked', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], 600000)
return {now, string.format('%.0f', turn), earliest, elsewhere}

-- name: earliest
-- flags: no-writes,allow-cross-slot-keys
-- KEYS: a due set of this node of a cluster. ARGV: time, and the due sets that may be on this node, too. Answers the time,
-- the earliest that is due ('' for nothing), and the due sets that are on other nodes.
local now = time(ARGV[1])
local earliest, elsewhere = first_due(ARGV, 2, first_due(KEYS, 1, nil))
return {now, earliest and string.format('%.0f', earliest) or '', elsewhere}

-- name: postpone
-- flags: allow-oom
-- KEYS: record, due. Not due after all: look again at ARGV[4] ('' for never), if the record is still the one seen.
local record = redis.call('GET', KEYS[1])
if not record or string.sub(record, 1, string.len(ARGV[3])) ~= ARGV[3] then return 0 end
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[2], ARGV[4], ARGV[2]) else redis.call('ZREM', KEYS[2], ARGV[2]) end
return 1

-- name: migrate
-- KEYS: meta. Written once, as the first version; 0 where it is there.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'store_id', ARGV[2], 'schema_version', '1', 'epoch', '1', 'id_format', '1', 'secret_check', ARGV[3])
return 1

-- name: mark
-- KEYS: marker. ARGV: time, ms to live.
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
return 1

-- name: version
-- KEYS: meta. ARGV: time, version.
redis.call('HSET', KEYS[1], 'schema_version', ARGV[2])
return 1
