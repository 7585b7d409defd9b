-- The request that is not the usual one.
--
-- Reply, doubles: 1 (or -1 where it was too late, and nothing else), the server's time, the time judged at, and for
-- each rule: 1 where it passes plus 2 where it was charged, the time its bucket was judged at, its life, x and y, before
-- the charge (y of a token or leaky bucket: after). Of a log x is what is in the window, y the time of the entry that has
-- to leave before it passes, and there follow the times of the first and the last entry in it; -1 where there is none.
local function decide(keys, args, server)
  local late, now, fresh_life, longer, at = unpack('<dddd', args)
  if server > late then return pack('<ddd', -1, server, 0) end
  if now < 0 then now = server end

  -- Numbers of the rules, one after the other, and the logs among them.
  local rules, logs, against, to = {}, {}, 0, 0 -- against: the rule that refuses; 0 where none does, -1 where several do
  local n = #keys
  for i = 1, n do
    local how, room, cost, a, b, c
    how, room, cost, a, b, c, at = unpack('<dddddd', args, at)
    local alg, take, votes, in_place_of = how % 8, floor(how / 8) % 4, floor(how / 32) % 2 == 1, floor(how / 64)
    local life, judged, x, y, changed, pass = fresh_life, now, 0, 0, false, false
    if alg == LOG then
      if not bring_log then with_logs() end
      local log, place = bring_log(keys[i], now, fresh_life, a, b)
      logs[i] = log
      life, judged, changed = log.life, log.judged, log.changed
      x, place, log.oldest, log.newest = look_at(log)
      y, pass = -1, x <= room
      if not pass and room >= 0 then
        local missing, before = x - room, sum_before(log, place)
        place = first(log, place, function(_, sum) return sum - before >= missing end)
        if place < log.len then y = entry(log, place) end
      end
    elseif alg == PLACES then
      if not look_held then with_places() end
      local lapsed, back
      x, lapsed, back = look_held(keys[i], server)
      changed, y, pass = (#lapsed > 0 or back > 0) and lapsed, back, x <= room
    else
      local state = call('GET', keys[i])
      if state then
        local seen, a0, b0, c0
        life, seen, x, y, a0, b0, c0 = unpack(STATE, state)
        local drained = (now - seen) * b0
        local as_usual = alg == BUCKET and drained >= 0 and a == a0 and b == b0 and c == c0
        if as_usual and drained <= x then -- what nearly every request finds: as `bring`, in short
          x, y = x - drained, y - drained
        elseif as_usual and drained >= y + b then -- or nothing is left of anything, whatever is rounded
          x, y = 0, 0
        else
          if not bring then with_the_rest() end
          life, judged, x, y, changed = bring(alg, state, now, fresh_life, a, b, c)
        end
      end
      if alg == COUNTER then
        pass = y * (a - judged % a) <= (room - x) * a
      else
        pass = x <= room
      end
    end
    if not pass and votes then against = against == 0 and i or -1 end
    if n == 1 and alg < LOG then
      -- One rule needs no list.
      local taken = cost > 0 and (take == 2 or (take == 1 and pass))
      local told_x = x
      if taken or (changed and take > 0) then
        local ttl
        if alg == BUCKET and taken and x + cost <= MOST and y + cost <= MOST then
          x, y = x + cost, y + cost
          ttl = max(ceil((judged + ceil(y / b) - now) / 1000), 1) + longer
        else
          if not bring then with_the_rest() end
          if taken then life, x, y = charged(alg, life, x, y, c, cost, fresh_life) end
          ttl = milliseconds(fresh_at(alg, judged, x, y, a, b), now, longer)
        end
        call('SET', keys[1], pack(STATE, life, judged, x, y, a, b, c), 'PX', ttl)
      end
      return pack('<dddddddd', 1, server, now, (pass and 1 or 0) + (taken and 2 or 0), judged, life, told_x, y)
    end
    rules[to + 1], rules[to + 2], rules[to + 3], rules[to + 4], rules[to + 5] = alg, take, cost, a, b
    rules[to + 6], rules[to + 7], rules[to + 8], rules[to + 9], rules[to + 10] = c, life, judged, x, y
    rules[to + 11], rules[to + 12], rules[to + 13] = changed, pass, in_place_of
    to = to + 13
  end

  local reply = pack('<ddd', 1, server, now)
  to = 0
  for i = 1, n do
    local alg, take, cost, a, b = rules[to + 1], rules[to + 2], rules[to + 3], rules[to + 4], rules[to + 5]
    local c, life, judged, x, y = rules[to + 6], rules[to + 7], rules[to + 8], rules[to + 9], rules[to + 10]
    local changed, pass, in_place_of, log = rules[to + 11], rules[to + 12], rules[to + 13], logs[i]
    to = to + 13
    local told_x, told_y, flags = x, y, pass and 1 or 0
    local all = against == 0 or against == in_place_of
    local taken = cost > 0 and (take == 2 or (take == 1 and all and pass))
    if taken then flags = flags + 2 end
    if log then
      if taken then
        charge_log(log, cost)
        save_log(log, judged, now, longer)
      elseif changed and take > 0 then
        save_log(log, log.newest, now, longer)
      end
    elseif alg == PLACES then
      if changed and take > 0 then drop_lapsed(keys[i], server, changed, y) end
      if taken then x = x + hold(keys[i], life, cost, server, a) end
      if taken or (changed and take > 0) then save_held(keys[i], x, server) end
    elseif taken or (changed and take > 0) then
      local ttl
      if alg == BUCKET and taken and x + cost <= MOST and y + cost <= MOST then
        x, y = x + cost, y + cost
        ttl = max(ceil((judged + ceil(y / b) - now) / 1000), 1) + longer
      else
        if not bring then with_the_rest() end
        if taken then life, x, y = charged(alg, life, x, y, c, cost, fresh_life) end
        ttl = milliseconds(fresh_at(alg, judged, x, y, a, b), now, longer)
      end
      if alg == BUCKET then told_y = y end
      call('SET', keys[i], pack(STATE, life, judged, x, y, a, b, c), 'PX', ttl)
    end
    reply = reply .. pack('<ddddd', flags, judged, life, told_x, told_y)
    if log then reply = reply .. pack('<dd', log.oldest, log.newest) end
  end
  return reply
end
