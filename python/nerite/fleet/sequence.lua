-- Which replica must get this request? One with a sequence id goes where the others of its sequence went.
--
-- The id is a parameter of the request: a key of the JSON before the tensors over HTTP, an entry of a map in the message over gRPC. The filter puts it
-- into a header, by which the routes choose. A request with an id is not sent again after a replica may have got it.
local HEADER = "nerite-sequence-id"
-- The parameters are looked for in this many bytes at the beginning and at the end. In a message they come before the tensors' contents.
local PART_BYTES = 65536

-- Text as hexadecimal digits. A client chooses the id, and in a header it could end the header and begin another request.
local function hex(text)
  return (text:gsub(".", function(one) return string.format("%02x", one:byte()) end))
end

-- The value of the parameter sequence_id in JSON. A quote inside a string has a backslash before it. 0 means no sequence.
local function in_json(text)
  local value = text:match('[^\\]"sequence_id"%s*:%s*"([^"]*)"')
  if value and value ~= "" then
    return "t" .. hex(value)
  end
  value = text:match('[^\\]"sequence_id"%s*:%s*(%d+)')
  return value and value ~= "0" and "n" .. value or nil
end

-- A varint: its bytes, and where what follows it begins.
local function varint(text, first)
  local last = first
  while last < first + 9 and (text:byte(last) or 0) >= 128 do
    last = last + 1
  end
  return text:sub(first, last), last + 1
end

-- The value of the entry sequence_id: its key (field 1), then its value (field 2), an InferParameter whose field 2 is a number and field 3 a string.
local function in_message(text)
  local _, last = text:find("\10\11sequence_id\18", 1, true)
  if last == nil then
    return nil
  end
  local _, begin = varint(text, last + 1)
  local kind = text:byte(begin)
  if kind == 16 then
    local number = varint(text, begin + 1)
    return number ~= "\0" and "v" .. hex(number) or nil
  elseif kind == 26 then
    -- A server takes at most 128 bytes.
    local size, first = varint(text, begin + 1)
    local length = size:byte(1) % 128 + (size:byte(2) or 0) * 128
    return length > 0 and "t" .. hex(text:sub(first, first + length - 1)) or nil
  end
  return nil
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local path = headers:get(":path") or ""
  local json_length = tonumber(headers:get("inference-header-content-length") or "")
  local is_message = path == "/inference.GRPCInferenceService/ModelInfer"
  if not is_message and not path:match("/infer$") and not path:match("/infer%?") then
    return
  end
  -- Waits for the whole request, which the router keeps to send it again. Headers that were taken before cannot be used after it.
  local body = handle:body()
  if body == nil or body:length() == 0 then
    return
  end
  local length = body:length()
  local value
  if is_message then
    value = in_message(body:getBytes(0, math.min(length, PART_BYTES)))
  else
    length = math.max(0, math.min(json_length or length, length))
    value = in_json(body:getBytes(0, math.min(length, PART_BYTES)))
    if value == nil and length > PART_BYTES then
      local rest = math.min(length - PART_BYTES, PART_BYTES)
      value = in_json(body:getBytes(length - rest, rest))
    end
  end
  if value ~= nil then
    handle:headers():replace(HEADER, value)
  end
end
