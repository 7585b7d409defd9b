-- Several requests that were asked at one moment, one after the other, each as if it had been asked alone.
--
-- KEYS: the buckets of all requests, each once: token and leaky buckets first. ARGV[1], little-endian doubles:
--   count    how many requests
--   fetched  how many of the keys are token and leaky buckets
--   shapes   how many kinds of charges there are
--   late     the first of the times after which a request may charge nothing any more
--   timed    1 where requests have times of their own to be judged at
--   life     a number; those from it to `count` behind it are no bucket's life yet
--   longer   as for one request
--   and for each kind of charge
--     how, room, cost, a, b, c   as for one request
--   and for each request
--     late, now                  as for one request
-- and then bytes, for each request
--   rules    how many rules it has
--   and for each of them the number of its key and the number of its kind of charge, from 1.
--
-- Reply: for each request what would be replied to it alone, or an error.
local keys, args, byte = KEYS, ARGV[1], string.byte
local time = call('TIME')
local server = time[1] * 1000000 + time[2]
local count, fetched, kinds, earliest, timed, lives, longer, at = unpack('<ddddddd', args)
local kind = { unpack('<' .. string.rep('dddddd', kinds), args, at) }
local times = kind[kinds * 6 + 1]
at = times + count * 16
timed = timed == 1 or server > earliest

-- The values of buckets, as charged so far; how long those live that have to be written; and what one request charges.
local values, ttls, charges, replies = {}, {}, { 0, 0, 0, 0, 0, 0 }, {}
if fetched > 0 then values = call('MGET', _G.unpack(keys, 1, fetched)) end

local function write(key)
  if ttls[key] then
    call('SET', keys[key], values[key], 'PX', ttls[key])
    ttls[key] = nil
  end
end

-- One request by the general way, on the server itself.
local function generally(request, from, n)
  local names, rules = {}, ''
  local late, judged = unpack('<dd', args, times + (request - 1) * 16)
  for i = 1, n do
    local key, which = byte(args, from + i * 2 - 2, from + i * 2 - 1)
    which = which * 6
    names[i] = keys[key]
    rules = rules
      .. pack('<dddddd', kind[which - 5], kind[which - 4], kind[which - 3], kind[which - 2], kind[which - 1], kind[which])
    write(key)
  end
  local ran, reply = pcall(decide, names, pack('<dddd', late, judged, lives + request, longer) .. rules, server)
  for i = 1, n do
    local key = byte(args, from + i * 2 - 2)
    if key <= fetched then values[key] = redis.pcall('GET', keys[key]) end
  end
  if ran then return reply end
  return { err = type(reply) == 'table' and reply.err or tostring(reply) }
end

for request = 1, count do
  local n, judged, reply, all, usual = byte(args, at), server, '', true, true
  local from = at + 1
  at = from + n * 2
  if timed then
    local late, now = unpack('<dd', args, times + (request - 1) * 16)
    usual = server <= late
    if now >= 0 then judged = now end
  end
  for i = 1, usual and n or 0 do -- as the usual request alone
    local key, which = byte(args, from + i * 2 - 2, from + i * 2 - 1)
    which = which * 6
    local cost, a, b, c = kind[which - 3], kind[which - 2], kind[which - 1], kind[which]
    usual = kind[which - 5] == 40 and cost > 0
    local life, x, y, value = lives + request, 0, 0, values[key]
    if value == false then value = redis.pcall('GET', keys[key]) end -- false of a key of another kind too
    if value then
      usual = usual and #value == HEAD
      if not usual then break end
      local seen, a0, b0, c0
      life, seen, x, y, a0, b0, c0 = unpack(STATE, value)
      local drained = (judged - seen) * b
      usual = drained >= 0 and a == a0 and b == b0 and c == c0
      if drained <= x then
        x, y = x - drained, y - drained
      elseif drained >= y + b then
        x, y = 0, 0
      else
        usual = false
      end
    end
    if x > kind[which - 4] then all = false end
    x, y = x + cost, y + cost
    usual = usual and y <= MOST
    if not usual then break end
    value = pack(STATE, life, judged, x, y, a, b, c)
    local ttl = y / (b * 1000)
    reply, charges[i * 2 - 1], charges[i * 2] = reply .. value, value, ttl - ttl % -1 + longer
  end
  if not usual then
    reply = generally(request, from, n)
  elseif all then
    for i = 1, n do
      local key = byte(args, from + i * 2 - 2)
      values[key], ttls[key] = charges[i * 2 - 1], charges[i * 2]
    end
  else
    reply = reply .. '-'
  end
  replies[request] = reply
end
for key = 1, fetched do
  write(key)
end
return replies
