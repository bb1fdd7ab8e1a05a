-- Every script of the Redis store, by name. All keys of a call lie in one slot, so that a cluster runs it as a single
-- server does. On a single server, one call claims or settles many records, whose keys name their other keys. The first
-- argument is the time in microseconds if a test sets the clock, and empty for the server's own. stores/redis/layout.py
-- replaces AT, HEAD, BLANKS and field(record, '…') in each script by numbers, since a table of places would be built
-- anew at every call.
--
-- "flags" has allow-oom if the script must run on a full server: a command that has begun may end, and expired data may
-- go. It also makes a replica refuse the script, which "no-writes" does not. A claim has no flags: a full server still
-- replays existing records, and refuses the claim's first write.

-- name: prelude
-- Shared by all scripts. A head is whole if its digits are: tonumber fails on anything else, but takes a zero byte for
-- the end of the text. Only times that have not come yet are blank.
local call, sub, format, max = redis.call, string.sub, string.format, math.max
local function time(given)
    if given ~= '' then return tonumber(given) end
    local now = call('TIME')
    return tonumber(now[1]) * 1000000 + tonumber(now[2])
end
local function number(value) return format('%016.0f', value) end
local function readable(record)
    if string.len(record) <= HEAD or sub(record, 1, 2) ~= 'S1' or not string.find(field(record, 'lease_until'), '^%d+$') then
        return false
    end
    local digits = '1' .. sub(record, 3, AT.dedup_until[2]) .. sub(record, AT.lease_us[1], HEAD) .. '1'
    local ends = sub(record, AT.settled_at[1], AT.forget_after[2])
    return tonumber(digits, 16) and not string.find(digits, '\0', 1, true)
        and (ends == BLANKS or string.find(ends, '^[%d ]+$'))
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
-- KEYS: record. Returns the time to decide by, and the record.
return {time(ARGV[1]), call('GET', KEYS[1])}

-- name: look_kept
-- flags: no-writes
-- KEYS: the records. Returns the time to decide by, and each record, or nothing if there is none.
local reply, records = {time(ARGV[1])}, call('MGET', unpack(KEYS))
for place = 1, #KEYS do reply[place + 1] = records[place] end
return reply

-- name: claim
-- KEYS: the records, and in a cluster all their other keys behind them, which lie in the same slot. ARGV: the time, the
-- last place that the caller has seen anywhere, and for each record its terms (the part that claims of one policy
-- share, in fixed places), nonce and operation, and the text behind the head's times. Reserve each new key, and return
-- the records of the others. Returns the time, and for each key its record, or its place in the order of creation: a
-- number means that it was reserved. An error of one record is returned as a list of one text.
--
-- Terms with an m rely on the marker, whose name is at their end: if forgetting could cause a second effect, nothing is
-- granted without the marker. The name is that of the store that the caller has opened; a store created since, in an
-- emptied server, has other markers. While the marker exists, the server has neither been flushed nor begun to evict,
-- which would drop the marker first (EXISTS does not touch it). Without it, an earlier use of this key may have been
-- lost. The nonce tells whether a claim is the caller's own, never the result of this script: an answer may be lost,
-- and the call repeated. Open records never expire: the time to live begins with the settlement. A new place comes
-- after all places in this slot, and after all that the caller has seen.
local now, count = time(ARGV[1]), (#ARGV - 2) / 3
local at, after, known = number(now), max(now - 1, tonumber(ARGV[2])), {}
local function learn(terms)
    local lease_us, deadline_us, dedup_us = tonumber(sub(terms, 5, 20)), tonumber(sub(terms, 53, 68)), tonumber(sub(terms, 69, 84))
    local lease_until, dedup_until, due = now + math.min(lease_us, deadline_us), now + dedup_us, sub(terms, 4, 4)
    return {
        marker = sub(terms, 3, 3) == 'm' and 'marker' .. sub(terms, 85),
        due = due == 'l' and number(lease_until) or due == 'd' and number(max(lease_until, dedup_until)),
        begins = 'S1' .. sub(terms, 1, 2) .. '0' .. at .. number(lease_until),
        follows = at .. at .. number(now + deadline_us) .. number(dedup_until) .. BLANKS .. sub(terms, 5, 52),
    }
end
local function reserve(key, place, terms, names, rest)
    local tag, id = sub(key, 1, -35), sub(rest, 20, 35)
    if terms.marker and call('EXISTS', tag .. terms.marker) == 0 then
        return {'LOSTRECORDS a marker of this store is gone: records may be gone with it'}
    end
    local all, score = tag .. 'all', number(place)
    if call('ZCOUNT', all, score, '+inf') > 0 then
        place = tonumber(call('ZREVRANGE', all, 0, 0, 'WITHSCORES')[2]) + 1
        score = number(place)
    end
    if not call('SET', key, terms.begins .. names .. terms.follows .. rest, 'NX') then -- twice in this batch, or no string
        local record = redis.pcall('GET', key)
        return type(record) == 'table' and {record.err} or record
    end
    call('SET', tag .. 'o:' .. sub(names, 33), id)
    call('ZADD', all, score, id)
    call('ZADD', tag .. 'open', score, id)
    if terms.due then call('ZADD', tag .. 'due', terms.due, id) end
    return place
end
local reply, records = {now}, call('MGET', unpack(KEYS, 1, count))
for place = 1, count do
    local record = records[place]
    if not record then
        local text = ARGV[3 * place]
        local terms = known[text]
        if not terms then
            terms = learn(text)
            known[text] = terms
        end
        record = reserve(KEYS[place], after + place, terms, ARGV[3 * place + 1], ARGV[3 * place + 2])
    end
    reply[place + 1] = record
end
return reply

-- name: settle
-- flags: allow-oom
-- KEYS: the records, and in a cluster the other keys behind them. ARGV: the time, how long a record is kept beyond its
-- retention, and for each record the settlement (id, fence, nonce, state, kind and the length of the small part, in
-- fixed places) and the text behind the claim's fields. Writes the holder's answer to its open record, and begins the
-- record's time to live. Returns 0 if the fence or nonce is no longer the record's, or the record is no longer open:
-- then read and decide.
local now, grace, count = time(ARGV[1]), tonumber(ARGV[2]), (#ARGV - 2) / 2
local at, spans, seen = number(now), {}, {}
local function learn(span)
    local answer_until = now + tonumber(sub(span, 1, 16))
    local forget_after = max(answer_until, now + tonumber(sub(span, 17, 32)))
    return {
        ends = at .. number(answer_until) .. number(forget_after),
        ttl = format('%.0f', math.ceil((forget_after - now + grace) / 1000)),
    }
end
local function settle(key, record, said, rest)
    local state = sub(record, 3, 4)
    if (state ~= '01' and state ~= '02') or field(record, 'fence') ~= sub(said, 17, 32)
        or field(record, 'nonce') ~= sub(said, 33, 64) or not readable(record)
        or tonumber(field(record, 'lease_until')) == 0 then
        return 0
    end
    local text, tag, id = sub(record, AT.answer_us[1], AT.tombstone_us[2]), sub(key, 1, -35), sub(said, 1, 16)
    local span = spans[text]
    if not span then
        span = learn(text)
        spans[text] = span
    end
    call('SET', key, 'S1' .. sub(said, 65, 67) .. sub(record, AT.fence[1], AT.dedup_until[2]) .. span.ends
        .. sub(record, AT.lease_us[1], AT.claimed[2]) .. sub(said, 68, 75)
        .. sub(record, HEAD + 1, HEAD + tonumber(field(record, 'claimed'))) .. rest, 'PX', span.ttl)
    call('ZREM', tag .. 'open', id)
    call('ZREM', tag .. 'due', id)
    call('PEXPIRE', tag .. 'o:' .. field(record, 'operation_id'), span.ttl)
    return 1
end
local reply, records = {}, call('MGET', unpack(KEYS, 1, count))
for place = 1, count do
    local key, record = KEYS[place], records[place]
    if seen[key] then record = call('GET', key) end
    seen[key] = true
    reply[place] = record and settle(key, record, ARGV[2 * place + 1], ARGV[2 * place + 2]) or 0
end
return reply

-- name: renew
-- flags: allow-oom
-- KEYS: record, due. Renew a living holder's lease on a PROCESSING record; 0 in every other case: read and decide.
local now = time(ARGV[1])
local record = call('GET', KEYS[1])
if not record or not readable(record) or field(record, 'state') ~= '02' or field(record, 'fence') ~= ARGV[3]
    or field(record, 'nonce') ~= ARGV[4] or tonumber(field(record, 'lease_until')) == 0 then
    return 0
end
local deadline_at = tonumber(field(record, 'deadline_at'))
if now >= deadline_at then return 0 end
local lease_until = math.min(now + tonumber(field(record, 'lease_us')), deadline_at)
call('SETRANGE', KEYS[1], AT.lease_until[1] - 1, number(lease_until))
local due = call('ZSCORE', KEYS[2], ARGV[2])
if due and tonumber(due) < lease_until then call('ZADD', KEYS[2], lease_until, ARGV[2]) end
return 1

-- name: replace
-- flags: allow-oom
-- KEYS: record, operation, all, open, due, audit. Overwrite the version that was seen; write nothing if it has changed.
-- ARGV: time, id, seen, written, ms to live ('' for ever), whether it is open or UNKNOWN, when its lapse is due
-- ('' for never), line of the audit trail ('' for none), the former operation's key ('' where it is the same).
local record = call('GET', KEYS[1])
if not record or sub(record, 1, string.len(ARGV[3])) ~= ARGV[3] then return 0 end
if ARGV[9] ~= '' then call('DEL', ARGV[9]) end
if ARGV[5] == '' then
    call('SET', KEYS[1], ARGV[4])
    call('SET', KEYS[2], ARGV[2])
else
    call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
    call('SET', KEYS[2], ARGV[2], 'PX', ARGV[5])
end
local place = call('ZSCORE', KEYS[3], ARGV[2])
if not place then
    place = time(ARGV[1])
    call('ZADD', KEYS[3], place, ARGV[2])
end
if ARGV[6] == '1' then call('ZADD', KEYS[4], place, ARGV[2]) else call('ZREM', KEYS[4], ARGV[2]) end
if ARGV[7] ~= '' then call('ZADD', KEYS[5], ARGV[7], ARGV[2]) else call('ZREM', KEYS[5], ARGV[2]) end
if ARGV[8] ~= '' then call('RPUSH', KEYS[6], ARGV[8]) end
return 1

-- name: forget
-- flags: allow-oom
-- KEYS: record, operation, all, open, due. Drop what was seen ('' for a record that is gone by itself), and its places.
local record = call('GET', KEYS[1])
if record and (ARGV[3] == '' or sub(record, 1, string.len(ARGV[3])) ~= ARGV[3]) then return 0 end
call('DEL', KEYS[1], KEYS[2])
call('ZREM', KEYS[4], ARGV[2])
call('ZREM', KEYS[5], ARGV[2])
return call('ZREM', KEYS[3], ARGV[2])

-- name: due
-- flags: no-writes
-- KEYS: due. The time, and the records whose lapse is due, the oldest lease first.
local now = time(ARGV[1])
return {now, call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])}

-- name: turn
-- flags: allow-oom,allow-cross-slot-keys
-- KEYS: turns, and the due sets of all tags (none in a cluster). ARGV: time, the turn that the caller has ('' for none),
-- microseconds between two turns, in a cluster the due sets that may be on this node. All processes take turns, so that
-- a fleet's looks are as far apart as those of one process: a process that looks takes the turn after the last one
-- taken. If the last look is too long ago, a process with a turn is gone, and the turns begin anew. Returns the time,
-- the caller's next turn, the earliest due time ('' for none), and the due sets that are on other nodes.
local now, mine, every = time(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local earliest, elsewhere = first_due(ARGV, 4, first_due(KEYS, 2, nil))
earliest = earliest and format('%.0f', earliest) or ''
if mine and now < mine and mine < now + 100 * every then
    return {now, format('%.0f', mine), earliest, elsewhere}
end
local seen = call('HMGET', KEYS[1], 'last', 'looked')
local last, looked = tonumber(seen[1]) or now, tonumber(seen[2]) or 0
if last < now or looked > now or now - looked > every * 1.5 then last = now end
local turn = math.min(last, now + 60 * every) + every
call('HSET', KEYS[1], 'last', format('%.0f', turn), 'looked', format('%.0f', now))
call('PEXPIRE', KEYS[1], 600000)
return {now, format('%.0f', turn), earliest, elsewhere}

-- name: earliest
-- flags: no-writes,allow-cross-slot-keys
-- KEYS: a due set of this node of a cluster. ARGV: time, and other due sets that may be on this node. Returns the time,
-- the earliest due time ('' for none), and the due sets that are on other nodes.
local now = time(ARGV[1])
local earliest, elsewhere = first_due(ARGV, 2, first_due(KEYS, 1, nil))
return {now, earliest and format('%.0f', earliest) or '', elsewhere}

-- name: postpone
-- flags: allow-oom
-- KEYS: record, due. Not due after all: look again at ARGV[4] ('' for never), if the record is still the one seen.
local record = call('GET', KEYS[1])
if not record or sub(record, 1, string.len(ARGV[3])) ~= ARGV[3] then return 0 end
if ARGV[4] ~= '' then call('ZADD', KEYS[2], ARGV[4], ARGV[2]) else call('ZREM', KEYS[2], ARGV[2]) end
return 1

-- name: migrate
-- KEYS: meta. Write it once, as the first version; 0 if it exists.
if call('EXISTS', KEYS[1]) == 1 then return 0 end
call('HSET', KEYS[1], 'store_id', ARGV[2], 'schema_version', '1', 'epoch', '1', 'id_format', '1', 'secret_check', ARGV[3])
return 1

-- name: mark
-- KEYS: the tag's marker, and the one that has the store's name. ARGV: time, ms to live.
call('SET', KEYS[1], '1', 'PX', ARGV[2])
call('SET', KEYS[2], '1', 'PX', ARGV[2])
return 1

-- name: version
-- KEYS: meta. ARGV: time, version, epoch.
call('HSET', KEYS[1], 'schema_version', ARGV[2], 'epoch', ARGV[3])
return 1
