-- Compare-and-set for run-states: checks the conditions of a transition and applies it atomically.
--
-- KEYS[1] is the task's hash. ARGV[1] is the transition as JSON (`move` below); etl/runstate/transitions.py builds it.
-- All times are by this server's clock. Returns {verdict, seconds, field, value, ...}, with fields only on request.
--
-- Keys of a transition, in the order of evaluation:
--   id                  a repeated id returns the first verdict and changes nothing
--   uuid                the document's UUID. A hash with another UUID counts as missing: a restored database issues the
--                       same ids again. A hash without a UUID is accepted if it has the same generation
--   create, again       create the hash from `set`; with `again`, also replace one with the same generation
--   forget              delete the hash unless its generation is greater
--   generation, phase   must equal those of the hash, where the generation is `fence`
--   unstarted           no worker may have started, except that the task may wait for post-processing
--   before              the status must be one of these
--   token               must be the lease's token
--   free                no live lease, and the next attempt is due
--   wake, longest       no wake-up message within `wake` seconds; doubled after each one, up to `longest` times
--   peek                change nothing
--   take, lease         take the lease under this token, use one of `max_attempts` attempts, which the field named
--                       `attempts` counts, and record when the attempt began
--   lease               renew the lease
--   drop                return token and lease
--   refused             the storage refused the stage's output: record the time of the first refusal. A `delay` without
--                       `refused` clears that time
--   delay, woken        seconds until the next attempt is due, and until the wake-up message that was sent is due
--   after               the new status
--   set, increase, lift fields to set, to increase, and to raise to at least a value
--   visible             clients can see the change: increment the revision
--   ttl                 seconds until the hash expires
--   with_state          return the hash: true, or "news" when the verdict is moved or over
local key = KEYS[1]
local move = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local ENDED = {completed = true, failed = true, cancelled = true}
local RANK = {pending = 0, mineru_parsing = 1, llm_processing = 2, completed = 3, failed = 3, cancelled = 3}
local STAGES = {ocr = 1, postprocess = 2}

local function instant(seconds)
    return string.format('%.6f', seconds)
end

local function respond(verdict, seconds)
    local reply = {verdict, instant(seconds or 0)}
    local is_news = verdict == 'moved' or verdict == 'over'
    if (move.with_state == true and verdict ~= 'gone') or (move.with_state == 'news' and is_news) then
        for _, part in ipairs(redis.call('HGETALL', key)) do
            reply[#reply + 1] = part
        end
    end
    return reply
end

-- An invalid hash (another type, a missing field) counts as missing, so that recovery can recreate it.
local function is_whole()
    if redis.call('TYPE', key).ok ~= 'hash' then
        return false
    end
    local needed = redis.call('HMGET', key, 'fence', 'user_id', 'run', 'ocr_run', 'journal_run', 'revision', 'progress',
                              'rule_id', 'rule_version', 'size', 'created_at', 'updated_at')
    for _, value in ipairs(needed) do
        if not tonumber(value or '') then
            return false
        end
    end
    local counted = redis.call('HMGET', key, 'attempts_ocr', 'attempts_postprocess', 'prompt_tokens',
                               'completion_tokens', 'calls', 'revision', 'progress')
    for _, value in ipairs(counted) do
        if value and not string.match(value, '^%-?%d+$') then
            return false
        end
    end
    local words = redis.call('HMGET', key, 'status', 'phase')
    return RANK[words[1]] ~= nil and STAGES[words[2]] ~= nil
end

local had = {}
if is_whole() then
    had = redis.call('HMGET', key, 'fence', 'status', 'phase', 'token', 'lease_until', 'available_at', 'started',
                     'hinted_at', 'hints', 'last_moves', 'uuid')
end
local generation, status, phase, token = tonumber(had[1] or ''), had[2], had[3], had[4] or ''
local uuid = had[11] or ''
if move.uuid and uuid == '' and generation and generation == move.generation then
    uuid = move.uuid  -- an earlier release created the hash, without a UUID; its generation identifies the document
    redis.call('HSET', key, 'uuid', uuid)
end
if move.uuid and move.uuid ~= uuid then
    generation = nil
end
local lease_until, available_at = tonumber(had[5] or '') or 0, tonumber(had[6] or '') or 0
-- When the last wake-up message is due, and how many were sent since the last attempt.
local hinted_at, hints = tonumber(had[8] or '') or 0, tonumber(had[9] or '') or 0

-- A client that did not receive the reply repeats the transition, perhaps after others. It gets the same verdict.
local known = had[10] or ''
local function remember(verdict)
    if move.id then
        redis.call('HSET', key, 'last_moves', string.sub(move.id .. '=' .. verdict .. ' ' .. known, 1, 256))
    end
    return respond(verdict)
end
local known_verdict = move.id and string.match(' ' .. known, ' ' .. move.id .. '=(%a+) ')
if known_verdict then
    return respond(known_verdict)
end

-- ---- Create -----------------------------------------------------------------------------------------------------
if move.create then
    local is_same = generation == move.generation
    if generation and (generation > move.generation or (is_same and not move.again)) then
        return respond(is_same and 'same' or 'newer')
    end
    redis.call('DEL', key)
    redis.call('HSET', key, 'updated_at', instant(now), 'hinted_at', instant(now))
    for name, value in pairs(move.set) do
        redis.call('HSET', key, name, value)
    end
    redis.call('EXPIRE', key, move.ttl)
    known = ''
    return remember('moved')
end

-- ---- Forget -----------------------------------------------------------------------------------------------------
if move.forget then
    if generation and generation > move.generation then
        return respond('newer')
    end
    redis.call('DEL', key)
    return respond('gone')
end

-- ---- Compare ----------------------------------------------------------------------------------------------------
if not generation then
    return respond('gone')
end
if move.generation and generation ~= move.generation then
    return respond(generation < move.generation and 'stale' or 'newer')
end
if ENDED[status] then
    return respond('over')
end
if move.wake then
    redis.call('EXPIRE', key, move.ttl)  -- an open task's state must not expire while it waits
end
if move.phase and phase ~= move.phase then
    return respond(STAGES[phase] > STAGES[move.phase] and 'passed' or 'behind')
end
local is_held = token ~= '' and lease_until > now
if move.unstarted and had[7] == '1' and (status ~= 'llm_processing' or is_held) then
    return respond('started')
end
if move.before then
    local fits = false
    for _, one in ipairs(move.before) do
        fits = fits or one == status
    end
    if not fits or (move.after and RANK[move.after] < RANK[status]) then
        return respond('elsewhere')
    end
end
if move.token and token ~= move.token then
    return respond('lost')
end
if move.free then
    if is_held then
        return respond('held', lease_until - now)
    end
    if available_at > now then
        return respond('early', available_at - now)
    end
end
if move.wake and now - hinted_at < move.wake * math.min(2 ^ hints, move.longest) then
    return respond('waiting')
end
if move.peek then
    return respond('moved')
end

-- ---- Set --------------------------------------------------------------------------------------------------------
if move.take then
    redis.call('HSET', key, 'token', move.take, 'lease_until', instant(now + move.lease), 'hints', 0)
    if tonumber(redis.call('HGET', key, move.attempts) or '') >= move.max_attempts then
        return remember('spent')
    end
    redis.call('HINCRBY', key, move.attempts, 1)
    redis.call('HSET', key, 'started', 1, 'available_at', 0, 'began_at', instant(now))
elseif move.lease then
    redis.call('HSET', key, 'lease_until', instant(now + move.lease))
end
if move.drop then
    redis.call('HSET', key, 'token', '', 'lease_until', 0)
end
if move.delay then
    redis.call('HSET', key, 'available_at', instant(now + move.delay), 'hints', 0)
    local since = tonumber(redis.call('HGET', key, 'refused_at') or '') or 0
    redis.call('HSET', key, 'refused_at', move.refused and (since > 0 and instant(since) or instant(now)) or 0)
end
if move.woken then
    redis.call('HSET', key, 'hinted_at', instant(now + move.woken))
end
if move.wake then
    redis.call('HSET', key, 'hints', hints + 1)
end
if move.after then
    redis.call('HSET', key, 'status', move.after)
end
for name, value in pairs(move.set or {}) do
    redis.call('HSET', key, name, value)
end
for name, value in pairs(move.increase or {}) do
    redis.call('HINCRBY', key, name, value)
end
for name, value in pairs(move.lift or {}) do
    if value > (tonumber(redis.call('HGET', key, name) or '') or 0) then
        redis.call('HSET', key, name, value)
    end
end
if move.visible then
    redis.call('HINCRBY', key, 'revision', 1)
    redis.call('HSET', key, 'updated_at', instant(now))
end
redis.call('EXPIRE', key, move.ttl)
return remember('moved')
