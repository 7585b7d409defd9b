-- One request: looks at the buckets of all its rules, then charges all of them, or none.
--
-- KEYS: one for each rule. ARGV[1], all little-endian doubles:
--   late    the server's time after which nothing may be charged any more, since nobody waits for the answer
--   now     the time to judge at; -1 for the server's own
--   life    a number that no bucket has as its life yet
--   longer  how many milliseconds keys live longer than they have to
--   and for each rule
--     alg       which algorithm (see above)
--     take      0 only looks, 1 is charged if all that vote pass, 2 is charged in any case
--     votes     1 where it may refuse the request
--     room      the most that may be used for it to pass, -1 where it never can; as x
--     cost      what it is charged, as x
--     a, b, c   its limit (see above)
-- Reply, doubles too: 1 (or -1 where it was too late, and nothing else), the server's time, the time judged at, and for
-- each rule: 1 where it passes plus 2 where it was charged, the time its bucket was judged at, its life, x and y, before
-- the charge (y of a token or leaky bucket: after). Of a log x is what is in the window, y the time of the entry that has
-- to leave before it passes, and there follow the times of the first and the last entry in it; -1 where there is none.
local args = ARGV[1]
local late, now, fresh_life, longer, at = unpack('<dddd', args)
local time = call('TIME')
local server = time[1] * 1000000 + time[2]
if server > late then return pack('<ddd', -1, server, 0) end
if now < 0 then now = server end

local rules, all = {}, true
for i = 1, #KEYS do
  local alg, take, votes, room, cost, a, b, c
  alg, take, votes, room, cost, a, b, c, at = unpack('<dddddddd', args, at)
  local life, judged, x, y, changed, log, pass = fresh_life, now, 0, 0, false, nil, false
  if alg == LOG then
    log = bring_log(KEYS[i], now, fresh_life, a, b)
    life, judged, changed = log.life, log.judged, log.changed
    local place
    x, place, log.oldest, log.newest = look_at(log)
    y, pass = -1, x <= room
    if not pass and room >= 0 then
      local missing, before = x - room, sum_before(log, place)
      place = first(log, place, function(_, sum) return sum - before >= missing end)
      if place < log.len then y = entry(log, place) end
    end
  else
    local state = call('GET', KEYS[i])
    if state then life, judged, x, y, changed = bring(alg, state, now, fresh_life, a, b, c) end
    if alg == COUNTER then
      pass = y * (a - judged % a) <= (room - x) * a
    else
      pass = x <= room
    end
  end
  if not pass and votes == 1 then all = false end
  rules[i] = { alg, take, cost, a, b, c, life, judged, x, y, changed, pass, log }
end

local reply = pack('<ddd', 1, server, now)
for i = 1, #KEYS do
  local rule = rules[i]
  local alg, take, cost, a, b, c = rule[1], rule[2], rule[3], rule[4], rule[5], rule[6]
  local life, judged, x, y, changed, pass, log = rule[7], rule[8], rule[9], rule[10], rule[11], rule[12], rule[13]
  local told_x, told_y, flags = x, y, pass and 1 or 0
  local taken = cost > 0 and (take == 2 or (take == 1 and all and pass))
  if taken then flags = flags + 2 end
  if log then
    if taken then
      charge_log(log, cost)
      save_log(log, judged, now, longer)
    elseif changed and take > 0 then
      save_log(log, log.newest, now, longer)
    end
  elseif taken or (changed and take > 0) then
    if taken then life, x, y = charged(alg, life, x, y, c, cost, fresh_life) end
    if alg == BUCKET then told_y = y end
    local ttl = milliseconds(fresh_at(alg, judged, x, y, a, b), now, longer)
    call('SET', KEYS[i], pack(STATE, life, judged, x, y, a, b, c), 'PX', ttl)
  end
  reply = reply .. pack('<ddddd', flags, judged, life, told_x, told_y)
  if log then reply = reply .. pack('<dd', log.oldest, log.newest) end
end
return reply
