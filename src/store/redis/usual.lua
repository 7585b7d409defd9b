-- One request: looks at the buckets of all its rules, then charges all of them, or none.
--
-- KEYS: one for each rule. ARGV[1], all little-endian doubles:
--   late    the server's time after which nothing may be charged any more, since nobody waits for the answer
--   now     the time to judge at; -1 for the server's own
--   life    a number that no bucket has as its life yet
--   longer  how many milliseconds keys live longer than they have to
--   and for each rule
--     how       alg + 8 * take + 32 * votes + 64 * in_place_of:
--               alg: which algorithm, 0 a token or leaky bucket
--               take: 0 only looks, 1 is charged if all that vote pass, 2 is charged in any case
--               votes: 1 where it may refuse the request
--               in_place_of: the number of the rule as if which were not there it is charged, from 1 on; 0 where none
--     room      the most that may be used for it to pass, -1 where it never can; as x
--     cost      what it is charged, as x
--     a, b, c   its limit (see below)
-- What is kept, and the reply of all but the usual request, are described below.
--
-- This is the short way of the usual request, in which all rules vote for buckets that were charged under the same limit
-- before, or never. It makes no functions and few tables, which is what a script's time goes into. What it does not know
-- it leaves, untouched, to what follows; where both know, they do the same.
--
-- Reply of the usual request: the buckets' values as they are when charged; and `-` after them where one rule refuses, so
-- that nothing was charged.
local time = redis.call('TIME')
local server = time[1] * 1000000 + time[2]
do
  local keys, args, call, unpack, pack = KEYS, ARGV[1], redis.call, struct.unpack, struct.pack
  local late, judged, fresh_life, longer, at = unpack('<dddd', args)
  local n, reply, all = #keys, '', true
  local usual = n > 0 and server <= late
  if judged < 0 then judged = server end
  local charged = { 0, 0, 0, 0, 0, 0 } -- of each rule the value and its time to live; made with room for three
  for i = 1, usual and n or 0 do
    local how, room, cost, a, b, c
    how, room, cost, a, b, c, at = unpack('<dddddd', args, at)
    usual = how == 40 and cost > 0 -- a bucket, charged if all pass, that votes
    if not usual then break end
    local life, x, y, state = fresh_life, 0, 0, call('GET', keys[i])
    if state then
      local seen, a0, b0, c0
      life, seen, x, y, a0, b0, c0 = unpack('<ddddddd', state)
      local drained = (judged - seen) * b
      usual = drained >= 0 and a == a0 and b == b0 and c == c0
      if drained <= x then
        x, y = x - drained, y - drained
      elseif drained >= y + b then -- nothing is left of anything, whatever is rounded
        x, y = 0, 0
      else
        usual = false
      end
    end
    if x > room then all = false end
    x, y = x + cost, y + cost
    usual = usual and y <= 4503599627370496 -- 2^52, the most that is counted
    if not usual then break end
    state = pack('<ddddddd', life, judged, x, y, a, b, c)
    local lives = y / (b * 1000)
    reply, charged[i * 2 - 1], charged[i * 2] = reply .. state, state, lives - lives % -1 + longer -- rounded up
  end
  if usual then
    if not all then return reply .. '-' end
    for i = 1, n do
      call('SET', keys[i], charged[i * 2 - 1], 'PX', charged[i * 2])
    end
    return reply
  end
end
