-- What both scripts share. Numbers are doubles, so all are whole and at most 2^53; times are microseconds.
--
-- A key's value is seven little-endian doubles:
--   life  which life of the bucket this is: what was charged in another one does not come back to it
--   seen  the latest time charged at
--   x, y  token and leaky bucket: units used at `seen`; units from `seen` to the end of the schedule, that marks count in
--         fixed window: count in the window of `seen`; 0
--         sliding counter: count in the window of `seen`; count in the one before
--         log: sum before the first entry; number of the first entry
--   a, b  token and leaky bucket: units of a permit; units that a microsecond drains
--         windows and log: length of the window; permits in it
--   c     token and leaky bucket: units of a full bucket; windows: the most that is counted; log: entries written
-- and for the log as many pairs of doubles: the time of an entry, and the sum of all charges up to it.
--
-- Places are a sorted set instead. Its members are the holders, as `life:cost`, and their scores the server's time at which
-- they lapse; and two with negative scores: `all`, the sum of all costs, and `seen`, the server's time at which it was
-- written last. A limit's `a` is after how long a holder lapses, `b` how many places there are, and c nothing.
local call, unpack, pack = redis.call, struct.unpack, struct.pack
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local BUCKET, FIXED, COUNTER, LOG, PLACES = 0, 1, 2, 3, 4
local STATE, HEAD, ENTRY = '<ddddddd', 56, 16
local MOST = 4503599627370496 -- 2^52: two of these are still exact
local STEPPED = 1000000 -- a time this much before `seen` is a clock set back; anything less is a thread that came late

-- Making a function costs time in each run, so these are made when one is called for.
local scaled, in_whole_nanoseconds, weight, bring, fresh_at, milliseconds, charged
local function with_the_rest()
  -- n * by / of, rounded up; exact where the product is not.
  function scaled(n, by, of)
    if n * by <= MOST then return ceil(n * by / of) end
    local whole = floor(n / of)
    local rest, part, sum, left, bit = n - whole * of, 0, 0, by, MOST
    while bit >= 1 do -- rest * by / of, one bit of `by` at a time
      part, sum = part * 2, sum * 2
      if left >= bit then
        left, part = left - bit, part + rest
      end
      while part >= of do
        part, sum = part - of, sum + 1
      end
      bit = bit / 2
    end
    return min(whole * by + sum + (part > 0 and 1 or 0), MOST)
  end

  -- Units rounded up to what drains in whole nanoseconds, where units are that fine.
  function in_whole_nanoseconds(units, b)
    local nanosecond = b / 1000
    if nanosecond ~= floor(nanosecond) then return units end
    return ceil(units / nanosecond) * nanosecond
  end

  -- What the window before still weighs at `time`, in permits, rounded up.
  function weight(previous, time, a)
    return ceil(previous * (a - time % a) / a)
  end

  -- A state, all but a log's, brought up to a decision at `now` under the limit a, b, c (nil: the one it has).
  -- Returns life, the time to judge at, x and y then, whether that is more than time passing, and the limit.
  function bring(alg, state, now, fresh_life, a, b, c)
    local life, seen, x, y, a0, b0, c0 = unpack(STATE, state)
    if not a then a, b, c = a0, b0, c0 end
    local judged, changed = max(now, seen), false
    if seen - now >= STEPPED then -- what was used stays used, and goes on from now
      judged, changed = now, true
      if alg == COUNTER then x, y = x + weight(y, seen, a0), 0 end
      x = min(x, alg == BUCKET and c0 or b0)
      if alg == BUCKET then y = x end
    elseif alg == BUCKET then
      local drained = (judged - seen) * b0
      if drained > x then -- idle since: what was given back of the time that has passed is gone
        x, y = 0, max(in_whole_nanoseconds(y, b0) - drained, 0)
      else
        x, y = x - drained, y - drained
      end
    else
      local windows = floor(judged / a0) - floor(seen / a0)
      if windows == 1 then
        x, y = 0, alg == COUNTER and x or 0
      elseif windows > 1 then
        x, y = 0, 0
      end
    end
    if a ~= a0 or b ~= b0 or c ~= c0 then -- what was used stays used, in permits
      changed = true
      if alg == BUCKET then
        x = min(scaled(x, a, a0), c)
        y = x
      else
        if a ~= a0 then x, y = x + weight(y, judged, a0), 0 end
        x = min(x, b)
      end
    end
    if changed then life = fresh_life end
    return life, judged, x, y, changed, a, b, c
  end

  -- When a state is as good as new.
  function fresh_at(alg, seen, x, y, a, b)
    if alg == BUCKET then return seen + ceil(y / b) end
    if x > 0 then return seen - seen % a + (alg == COUNTER and 2 * a or a) end
    if y > 0 then return seen - seen % a + a end
    return 0
  end

  -- How many milliseconds from `now` a key lives that is as good as new at `time`; one at least.
  function milliseconds(time, now, longer)
    return max(ceil((time - now) / 1000), 1) + longer
  end

  -- One more charge on a state brought up to date. An end of the schedule too far to be told begins a new life.
  function charged(alg, life, x, y, c, cost, fresh_life)
    if alg ~= BUCKET then return life, min(x + cost, c), y end
    x, y = min(x + cost, MOST), y + cost
    if y > MOST then return fresh_life, x, x end
    return life, x, y
  end
end

-- What only logs need.
local entry, sum_before, first, first_live, drop_before, bring_log, look_at, charge_log, save_log
local function with_logs()
  with_the_rest()
  -- A log: where its entries are. `only` is the one entry of a log that is not on the server like that.
  function entry(log, at)
    if log.only then return log.only[1], log.only[2] end
    local from = HEAD + at * ENTRY
    return unpack('<dd', call('GETRANGE', log.key, from, from + ENTRY - 1))
  end

  function sum_before(log, at)
    if at <= log.head then return log.gone end
    local _, sum = entry(log, at - 1)
    return sum
  end

  -- The first entry from number `from` on for which `test` holds; the number of entries where none does.
  function first(log, from, test)
    local to = log.len
    while from < to do
      local middle = floor((from + to) / 2)
      if test(entry(log, middle)) then to = middle else from = middle + 1 end
    end
    return from
  end

  -- The first entry that is still in the window of `a` that ends at `time`.
  function first_live(log, time, a)
    return first(log, log.head, function(at) return time - at < a end)
  end

  function drop_before(log, at)
    log.gone = sum_before(log, at)
    log.head = at
    if at >= log.len then log.gone, log.head, log.len, log.only = 0, 0, 0, nil end
  end

  -- The log at `key`, brought up to a decision at `now`; as `bring`.
  function bring_log(key, now, fresh_life, a, b)
    local state = call('GETRANGE', key, 0, HEAD - 1)
    local log =
      { key = key, life = fresh_life, seen = now, gone = 0, head = 0, len = 0, judged = now, a = a, b = b, new = true }
    if state == '' then return log end
    local a0, b0
    log.life, log.seen, log.gone, log.head, a0, b0, log.len = unpack(STATE, state)
    log.new = false
    local seen = log.seen
    if not a then a, b = a0, b0 end
    log.a, log.b, log.judged = a, b, max(now, seen)
    if seen - now >= STEPPED then
      local live = 0
      if log.len > log.head then
        local _, sum = entry(log, log.len - 1)
        live = min(sum - sum_before(log, first_live(log, seen, a0)), b0)
      end
      log.judged, log.seen, log.changed = now, now, true
      log.gone, log.head, log.len = 0, 0, live > 0 and 1 or 0
      log.only = live > 0 and { now, live } or nil
      log.rewritten = true
    end
    if a ~= a0 or b ~= b0 then
      log.changed = true
      drop_before(log, first_live(log, log.judged, a0))
      if log.len > 0 then -- the newest entries stay, as many as there is room for
        local _, sum = entry(log, log.len - 1)
        local gone = max(log.gone, sum - b)
        local head = first(log, log.head, function(_, upto) return upto > gone end)
        log.gone, log.head = gone, head
      end
    end
    if log.changed then log.life = fresh_life end
    return log
  end

  -- What is in the window, its first entry's number, and the time of that entry and of the last, -1 where there is none.
  function look_at(log)
    if log.len <= log.head then return 0, log.head, -1, -1 end
    local place = first_live(log, log.judged, log.a)
    local newest, sum = entry(log, log.len - 1)
    local oldest = place < log.len and entry(log, place) or -1
    return sum - sum_before(log, place), place, oldest, newest
  end

  function charge_log(log, cost)
    drop_before(log, first_live(log, log.judged, log.a))
    local last, sum = -1, log.gone
    if log.len > 0 then last, sum = entry(log, log.len - 1) end
    sum = min(sum + min(cost, 1099511627776), MOST) -- 2^40 is as good as endless
    log.seen = log.judged
    log.push = { log.judged, sum }
    log.push_at = last == log.judged and log.len - 1 or log.len
    log.len = log.push_at + 1
  end

  -- Writes a log whose newest entry was made at `newest`.
  function save_log(log, newest, now, longer)
    local ttl = milliseconds(newest + log.a, now, longer)
    local old = log.push and log.push_at or log.len
    if log.new or log.rewritten or old == 0 or (log.head >= 64 and log.head * 2 > old) then
      -- What was dropped from the front goes from the string too.
      local entries = ''
      if log.only then
        if old > log.head then entries = pack('<dd', log.only[1], log.only[2]) end
      elseif old > log.head then
        entries = call('GETRANGE', log.key, HEAD + log.head * ENTRY, HEAD + old * ENTRY - 1)
      end
      if log.gone > MOST / 2 then -- sums begin again
        local again, at = {}, 1
        while at < #entries do
          local time, sum
          time, sum, at = unpack('<dd', entries, at)
          again[#again + 1] = pack('<dd', time, sum - log.gone)
        end
        entries = table.concat(again)
        if log.push then log.push[2] = log.push[2] - log.gone end
        log.gone = 0
      end
      local pushed = log.push and pack('<dd', log.push[1], log.push[2]) or ''
      local head = pack(STATE, log.life, log.seen, log.gone, 0, log.a, log.b, log.len - log.head)
      call('SET', log.key, head .. entries .. pushed, 'PX', ttl)
      return
    end
    if log.push then call('SETRANGE', log.key, HEAD + log.push_at * ENTRY, pack('<dd', log.push[1], log.push[2])) end
    call('SETRANGE', log.key, 0, pack(STATE, log.life, log.seen, log.gone, log.head, log.a, log.b, log.len))
    call('PEXPIRE', log.key, ttl)
  end
end

-- What only places need.
local holder, look_held, hold, drop_lapsed, save_held
local function with_places()
  function holder(life, cost)
    return string.format('%.0f:%.0f', life, cost)
  end

  -- How many places at `key` are held, who held some and has lapsed, and by how much the server's clock was set back.
  function look_held(key, server)
    local least, sum, back = call('ZRANGE', key, 0, 1, 'WITHSCORES'), 0, 0
    for i = 1, #least, 2 do
      if least[i] == 'all' then
        sum = -least[i + 1]
      elseif least[i] == 'seen' and -least[i + 1] - server >= STEPPED then
        back = -least[i + 1] - server
      end
    end
    if #least == 0 then return sum, {}, back end
    local lapsed = call('ZRANGEBYSCORE', key, '(0', server + back)
    for i = 1, #lapsed do
      sum = sum - string.match(lapsed[i], ':(.*)')
    end
    return sum, lapsed, back
  end

  -- Lets a holder have its places for as long as the limit says from now; returns how many it did not have before.
  function hold(key, life, cost, server, a)
    return call('ZADD', key, server + a, holder(life, cost)) * cost
  end

  -- Writes that who has lapsed holds nothing, and that who has not keeps the time it had, by a clock that was set back.
  function drop_lapsed(key, server, lapsed, back)
    if #lapsed > 0 then call('ZREMRANGEBYSCORE', key, '(0', server + back) end
    if back == 0 then return end
    local held = call('ZRANGEBYSCORE', key, '(0', '+inf', 'WITHSCORES')
    for i = 1, #held, 2 do
      call('ZADD', key, held[i + 1] - back, held[i])
    end
  end

  -- Writes that `sum` places are held; a key of which none is held is gone.
  function save_held(key, sum, server)
    call('ZADD', key, -sum, 'all', -server, 'seen')
    local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    if last[1] == 'all' then
      call('DEL', key)
    else
      call('PEXPIRE', key, max(ceil((last[2] - server) / 1000), 1))
    end
  end
end
