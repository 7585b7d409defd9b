-- Gives a charge back, or a part of it, or charges more.
--
-- KEYS[1]: the bucket. ARGV[1], little-endian doubles:
--   now, life, longer   as for a decision
--   alg, a, b, c        as for a decision: the limit that the charge was made under
--   more                permits to charge in addition; 0 to give back
--   waits               how many units, or more, must be used for only the last charge to come back; less than 0: always
--   parts               how many parts come back, and for each of them
--     cost, left        permits that come back, and that still stand
--     at, fraction      its mark: a time, and units after it
--     life              the life it was charged in
-- Of places `cost` is what a holder had so far and `left` what it has now; the same where it is to have them for longer.
-- Reply: the mark and the life of what was charged in addition; zeros where nothing was.
local args = ARGV[1]
local now, fresh_life, longer, alg, a, b, c, more, waits, parts, at = unpack('<dddddddddd', args)
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local key = KEYS[1]

if alg == PLACES then
  with_places()
  local time = call('TIME') -- by which they lapse, whatever the time to judge at
  local server = time[1] * 1000000 + time[2]
  local sum, lapsed, back = look_held(key, server)
  -- A full server refuses what may take memory, but only as the first that a script writes.
  call('ZREM', key, '')
  drop_lapsed(key, server, lapsed, back)
  for _ = 1, parts do
    local cost, left, life, _
    cost, left, _, _, life, at = unpack('<ddddd', args, at)
    if cost == left then
      sum = sum + hold(key, life, cost, server, a)
    elseif call('ZREM', key, holder(life, cost)) == 1 then
      sum = sum - cost
      if left > 0 then sum = sum + hold(key, life, left, server, a) end
    end
  end
  save_held(key, sum, server)
  return pack('<ddd', 0, 0, 0)
end

if alg == LOG then
  with_logs()
  if more > 0 then
    local log = bring_log(key, now, fresh_life, nil, nil)
    if log.new then log.a, log.b = a, b end
    charge_log(log, more)
    save_log(log, log.judged, now, longer)
    return pack('<ddd', log.judged, 0, log.life)
  end
  local log = bring_log(key, now, fresh_life, nil, nil)
  if log.new then return pack('<ddd', 0, 0, 0) end
  if log.changed then
    local _, _, _, newest = look_at(log)
    save_log(log, newest, now, longer)
  end
  for _ = 1, parts do
    local cost, left, mark, fraction, life
    cost, left, mark, fraction, life, at = unpack('<ddddd', args, at)
    if life == log.life and cost > 0 then
      local place = first(log, log.head, function(time) return time >= mark end)
      if place < log.len and entry(log, place) == mark then
        -- Everything behind it comes forward.
        local _, sum = entry(log, place)
        local back = min(cost, sum - sum_before(log, place))
        local gone = back == sum - sum_before(log, place)
        local again, from = {}, 1
        local rest = call('GETRANGE', key, HEAD + place * ENTRY, HEAD + log.len * ENTRY - 1)
        if gone then from = from + ENTRY end
        while from < #rest do
          local time, upto
          time, upto, from = unpack('<dd', rest, from)
          again[#again + 1] = pack('<dd', time, upto - back)
        end
        if gone then log.len = log.len - 1 end
        local front = call('GETRANGE', key, HEAD, HEAD + place * ENTRY - 1)
        if place == 0 then front = '' end
        local entries = front .. table.concat(again)
        local head = pack(STATE, log.life, log.seen, log.gone, log.head, log.a, log.b, log.len)
        local newest = -log.a
        if log.len > log.head then newest = unpack('<d', entries, (log.len - 1) * ENTRY + 1) end
        call('SET', key, head .. entries, 'PX', milliseconds(newest + log.a, now, longer))
      end
    end
  end
  return pack('<ddd', 0, 0, 0)
end

with_the_rest()
local state = call('GET', key)
if more > 0 then
  local life, judged, x, y = fresh_life, now, 0, 0
  if state then
    local _
    life, judged, x, y, _, a, b, c = bring(alg, state, now, fresh_life, nil, nil, nil)
  end
  local cost = min(alg == BUCKET and more * a or more, MOST)
  life, x, y = charged(alg, life, x, y, c, cost, fresh_life)
  local ttl = milliseconds(fresh_at(alg, judged, x, y, a, b), now, longer)
  call('SET', key, pack(STATE, life, judged, x, y, a, b, c), 'PX', ttl)
  if alg ~= BUCKET then return pack('<ddd', judged, 0, life) end
  return pack('<ddd', judged + floor(y / b), y % b, life)
end

if not state then return pack('<ddd', 0, 0, 0) end
-- Windows that have passed stay as they are: a charge of one comes back to that one.
local life, seen, x, y, changed
life, seen, x, y, a, b, c = unpack(STATE, state)
if alg == BUCKET or seen - now >= STEPPED then
  life, seen, x, y, changed = bring(alg, state, now, fresh_life, nil, nil, nil)
end
local wrote = changed
for _ = 1, parts do
  local cost, left, mark, fraction, charged_in
  cost, left, mark, fraction, charged_in, at = unpack('<ddddd', args, at)
  if charged_in == life and cost > 0 then
    wrote = true
    if alg == BUCKET then
      -- What is still used of a charge is what is used in all, less what was charged behind it.
      local ahead = seen + floor(y / b) - mark
      local behind = ahead * b + y % b - fraction
      local keeps_its_turn = x > waits and behind ~= 0
      if ahead >= 0 and behind >= 0 and not keeps_its_turn then
        local back = min(max(x - behind, 0), min(cost * a, MOST))
        x, y = x - back, y - back
        -- Marks stay where they are: what comes back from the middle leaves a hole.
        if behind > 0 or left > 0 then y = y + in_whole_nanoseconds(back, b) end
      end
    else
      local windows = floor(seen / a) - floor(mark / a)
      if windows == 0 then
        x = max(x - cost, 0)
      elseif windows == 1 and alg == COUNTER then
        y = max(y - cost, 0)
      end
    end
  end
end
if wrote then
  local ttl = milliseconds(fresh_at(alg, seen, x, y, a, b), now, longer)
  call('SET', key, pack(STATE, life, seen, x, y, a, b, c), 'PX', ttl)
end
return pack('<ddd', 0, 0, 0)
