//! As much of a server as the scripts need, in this process: they run in an embedded Lua 5.1 against a map.

use std::{
    cell::RefCell,
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    rc::Rc,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use mlua::{Lua, MultiValue, Value, Variadic};

/// What is in a key, and how many milliseconds it was given to live when it was written last.
type Keys = Rc<RefCell<HashMap<Vec<u8>, (Held, i64)>>>;

/// What a key can hold.
enum Held {
    Bytes(Vec<u8>),
    /// Members and their scores.
    Sorted(HashMap<Vec<u8>, f64>),
}

impl Held {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Sorted(_) => panic!("a sorted set is no string"),
        }
    }

    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Sorted(_) => panic!("a sorted set is no string"),
        }
    }
}

/// Serves connections, one after the other or at once, for as long as the test's process lives; returns its URL.
pub(crate) fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (questions, asked) = std::sync::mpsc::channel::<(Vec<Vec<u8>>, std::sync::mpsc::Sender<Vec<u8>>)>();
        thread::spawn(move || {
            let machine = Machine::new();
            for (command, answer) in asked {
                let _ = answer.send(machine.run(&command));
            }
        });
        for stream in listener.incoming() {
            let (stream, questions) = (stream.unwrap(), questions.clone());
            thread::spawn(move || {
                talk(stream, |command| {
                    let (answer, answered) = std::sync::mpsc::channel();
                    questions.send((command, answer)).unwrap();
                    answered.recv().unwrap()
                })
            });
        }
    });
    url
}

/// Reads commands and writes replies until the other end is gone.
fn talk(stream: TcpStream, mut reply: impl FnMut(Vec<Vec<u8>>) -> Vec<u8>) {
    let mut to = stream.try_clone().unwrap();
    let mut from = BufReader::new(stream);
    while let Some(command) = read_command(&mut from) {
        if to.write_all(&reply(command)).is_err() {
            return;
        }
    }
}

fn read_command(from: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let number = |from: &mut dyn BufRead, sign: char| -> Option<usize> {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().strip_prefix(sign).expect("RESP").parse().unwrap())
    };
    let parts = number(from, '*')?;
    let mut command = Vec::new();
    for _ in 0..parts {
        let mut part = vec![0; number(from, '$')? + 2];
        from.read_exact(&mut part).ok()?;
        part.truncate(part.len() - 2);
        command.push(part);
    }
    Some(command)
}

struct Machine {
    lua: Lua,
    keys: Keys,
    scripts: RefCell<HashMap<String, Vec<u8>>>,
}

impl Machine {
    fn new() -> Self {
        let (lua, keys) = (Lua::new(), Keys::default());
        let calls = Rc::clone(&keys);
        let call = lua
            .create_function(move |lua, arguments: Variadic<Value>| {
                let text = |value: &Value| match value {
                    Value::String(text) => text.as_bytes().to_vec(),
                    Value::Integer(number) => number.to_string().into_bytes(),
                    Value::Number(number) => {
                        // As Redis writes numbers: a fraction where there should be none must not pass.
                        assert!(number.fract() == 0.0, "{number} is not whole");
                        format!("{number:.0}").into_bytes()
                    }
                    other => panic!("{other:?} as an argument of a command"),
                };
                let command: Vec<_> = arguments.iter().map(text).collect();
                Ok(match call(&mut calls.borrow_mut(), &command) {
                    Reply::Nothing => Value::Boolean(false),
                    Reply::Bytes(bytes) => Value::String(lua.create_string(bytes)?),
                    Reply::List(list) => {
                        let values = list.into_iter().map(|bytes| match bytes {
                            Some(bytes) => lua.create_string(bytes).map(Value::String),
                            None => Ok(Value::Boolean(false)),
                        });
                        Value::Table(lua.create_sequence_from(values.collect::<mlua::Result<Vec<_>>>()?)?)
                    }
                    Reply::Two(one, other) => Value::Table(lua.create_sequence_from([one, other])?),
                    Reply::Count(count) => Value::Number(count as f64),
                })
            })
            .unwrap();
        let redis = lua.create_table().unwrap();
        // An error ends a script here, as `redis.call` has it; what a test makes fail, it makes fail on a real server.
        redis.set("pcall", call.clone()).unwrap();
        redis.set("call", call).unwrap();
        lua.globals().set("redis", redis).unwrap();
        lua.globals().set("struct", packing(&lua)).unwrap();
        lua.globals().set("KEYS", Value::Boolean(false)).unwrap();
        lua.globals().set("ARGV", Value::Boolean(false)).unwrap();
        // As in Redis: scripts have no globals of their own.
        lua.load("setmetatable(_G, { __newindex = function(_, name) error('global ' .. name) end })").exec().unwrap();
        Self { lua, keys, scripts: RefCell::default() }
    }

    fn run(&self, command: &[Vec<u8>]) -> Vec<u8> {
        let name = String::from_utf8(command[0].to_ascii_uppercase()).unwrap();
        match name.as_str() {
            "ROLE" => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
            "EVAL" => {
                let digest = ::redis::Script::new(std::str::from_utf8(&command[1]).unwrap()).get_hash().to_owned();
                self.scripts.borrow_mut().insert(digest, command[1].clone());
                self.eval(&command[1], &command[2..])
            }
            "EVALSHA" => {
                let script = self.scripts.borrow().get(std::str::from_utf8(&command[1]).unwrap()).cloned();
                match script {
                    Some(script) => self.eval(&script, &command[2..]),
                    None => b"-NOSCRIPT No matching script.\r\n".to_vec(),
                }
            }
            "DEL" => {
                let gone = self.keys.borrow_mut().remove(&command[1]).is_some();
                format!(":{}\r\n", u8::from(gone)).into_bytes()
            }
            // For the test itself: every key, its value and how long it was given. A sorted set is told by its size.
            "EVERYTHING" => {
                let keys = self.keys.borrow();
                let mut reply = format!("*{}\r\n", keys.len() * 3).into_bytes();
                for (key, (held, ttl)) in keys.iter() {
                    let value = match held {
                        Held::Bytes(bytes) => bytes.clone(),
                        Held::Sorted(set) => set.len().to_string().into_bytes(),
                    };
                    for part in [key, &value, &ttl.to_string().into_bytes()] {
                        reply.extend(bulk(part));
                    }
                }
                reply
            }
            _ => b"+OK\r\n".to_vec(),
        }
    }

    fn eval(&self, script: &[u8], arguments: &[Vec<u8>]) -> Vec<u8> {
        let keys: usize = std::str::from_utf8(&arguments[0]).unwrap().parse().unwrap();
        let list = |parts: &[Vec<u8>]| {
            let strings = parts.iter().map(|part| self.lua.create_string(part).unwrap());
            self.lua.create_sequence_from(strings).unwrap()
        };
        self.lua.globals().set("KEYS", list(&arguments[1..=keys])).unwrap();
        self.lua.globals().set("ARGV", list(&arguments[keys + 1..])).unwrap();
        match self.lua.load(script).eval::<Value>() {
            Ok(reply) => written(&reply),
            Err(error) => refusal(&error.to_string()),
        }
    }
}

/// A script's reply as Redis sends it.
fn written(reply: &Value) -> Vec<u8> {
    match reply {
        Value::String(text) => bulk(&text.as_bytes()),
        Value::Table(table) => match table.get::<Option<String>>("err").unwrap() {
            Some(error) => refusal(&error),
            None => {
                let parts: Vec<_> = table.sequence_values::<Value>().map(|part| written(&part.unwrap())).collect();
                [format!("*{}\r\n", parts.len()).into_bytes(), parts.concat()].concat()
            }
        },
        other => panic!("{other:?} is no reply of these scripts"),
    }
}

fn refusal(error: &str) -> Vec<u8> {
    format!("-ERR {}\r\n", error.replace(['\r', '\n'], " ")).into_bytes()
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

enum Reply {
    Nothing,
    Bytes(Vec<u8>),
    List(Vec<Option<Vec<u8>>>),
    Two(String, String),
    Count(usize),
}

/// The commands that the scripts use. Nothing expires: what a test checks is what it was given.
fn call(keys: &mut HashMap<Vec<u8>, (Held, i64)>, command: &[Vec<u8>]) -> Reply {
    let number = |at: usize| std::str::from_utf8(&command[at]).unwrap().parse::<i64>().unwrap();
    match command[0].as_slice() {
        b"TIME" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            Reply::Two(now.as_secs().to_string(), now.subsec_micros().to_string())
        }
        b"GET" => keys.get(&command[1]).map_or(Reply::Nothing, |(held, _)| Reply::Bytes(held.bytes().to_vec())),
        b"MGET" => {
            let values = command[1..].iter().map(|key| keys.get(key).map(|(held, _)| held.bytes().to_vec()));
            Reply::List(values.collect())
        }
        b"SET" => {
            assert_eq!(command[3], b"PX");
            assert!(number(4) > 0, "redis refuses to let a key live for {} ms", number(4));
            keys.insert(command[1].clone(), (Held::Bytes(command[2].clone()), number(4)));
            Reply::Nothing
        }
        b"PEXPIRE" => {
            keys.get_mut(&command[1]).expect("a key that expires").1 = number(2);
            Reply::Nothing
        }
        b"GETRANGE" => {
            let (from, to) = (number(2), number(3) + 1);
            let value = keys.get(&command[1]).map_or(&[][..], |(held, _)| held.bytes());
            let to = usize::try_from(to).unwrap().min(value.len());
            let from = usize::try_from(from).unwrap().min(to);
            Reply::Bytes(value[from..to].to_vec())
        }
        b"SETRANGE" => {
            let from = usize::try_from(number(2)).unwrap();
            let value = keys.get_mut(&command[1]).expect("written as a whole first").0.bytes_mut();
            value.resize(value.len().max(from + command[3].len()), 0);
            value[from..from + command[3].len()].copy_from_slice(&command[3]);
            Reply::Nothing
        }
        b"DEL" => Reply::Count(usize::from(keys.remove(&command[1]).is_some())),
        _ => call_sorted(keys, command),
    }
}

/// The commands of sorted sets.
fn call_sorted(keys: &mut HashMap<Vec<u8>, (Held, i64)>, command: &[Vec<u8>]) -> Reply {
    let text = |at: usize| std::str::from_utf8(&command[at]).unwrap();
    let score = |at: usize| text(at).parse::<f64>().unwrap();
    let key = &command[1];
    if command[0] == b"ZADD" {
        let (held, _) = keys.entry(key.clone()).or_insert_with(|| (Held::Sorted(HashMap::new()), -1));
        let Held::Sorted(set) = held else { panic!("a string is no sorted set") };
        let added =
            (2..command.len()).step_by(2).filter(|at| set.insert(command[at + 1].clone(), score(*at)).is_none());
        return Reply::Count(added.count());
    }
    let mut empty = HashMap::new();
    let set = match keys.get_mut(key) {
        Some((Held::Sorted(set), _)) => set,
        Some(_) => panic!("a string is no sorted set"),
        None => &mut empty,
    };
    let mut sorted: Vec<_> = set.iter().map(|(member, score)| (*score, member.clone())).collect();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
    let told = |range: Vec<(f64, Vec<u8>)>| {
        let parts = range.into_iter().flat_map(|(score, member)| [Some(member), Some(format!("{score}").into_bytes())]);
        Reply::List(parts.collect())
    };
    let above = |member: &(f64, Vec<u8>)| {
        let least = text(2).strip_prefix('(').expect("only what is above it").parse::<f64>().unwrap();
        member.0 > least && (text(3) == "+inf" || member.0 <= score(3))
    };
    let reply = match command[0].as_slice() {
        b"ZREM" => Reply::Count(usize::from(set.remove(&command[2]).is_some())),
        b"ZRANGE" => {
            assert_eq!((text(2), text(3), text(4)), ("0", "1", "WITHSCORES"));
            sorted.truncate(2);
            told(sorted)
        }
        b"ZREVRANGE" => {
            assert_eq!((text(2), text(3), text(4)), ("0", "0", "WITHSCORES"));
            told(sorted.pop().into_iter().collect())
        }
        b"ZRANGEBYSCORE" => {
            sorted.retain(above);
            match command.get(4) {
                Some(with) => {
                    assert_eq!(with, b"WITHSCORES");
                    told(sorted)
                }
                None => Reply::List(sorted.into_iter().map(|(_, member)| Some(member)).collect()),
            }
        }
        b"ZREMRANGEBYSCORE" => {
            sorted.retain(above);
            for (_, member) in &sorted {
                set.remove(member);
            }
            Reply::Count(sorted.len())
        }
        other => panic!("{} is not among the scripts' commands", String::from_utf8_lossy(other)),
    };
    if set.is_empty() {
        // No set is empty.
        keys.remove(key);
    }
    reply
}

/// `struct.pack` and `struct.unpack`, for little-endian doubles alone.
fn packing(lua: &Lua) -> mlua::Table {
    let doubles = |format: &str| {
        let doubles = format.strip_prefix('<').expect("little-endian");
        assert!(doubles.bytes().all(|kind| kind == b'd'), "{format}");
        doubles.len()
    };
    let number = |value: &Value| match value {
        Value::Integer(number) => *number as f64,
        Value::Number(number) => *number,
        other => panic!("{other:?} is no number"),
    };
    let pack = lua
        .create_function(move |lua, (format, values): (String, Variadic<Value>)| {
            assert_eq!(doubles(&format), values.len());
            lua.create_string(values.iter().flat_map(|value| number(value).to_le_bytes()).collect::<Vec<_>>())
        })
        .unwrap();
    let unpack = lua
        .create_function(move |_, (format, text, from): (String, mlua::String, Option<usize>)| {
            let mut at = from.unwrap_or(1) - 1;
            let mut values = MultiValue::new();
            for _ in 0..doubles(&format) {
                let bytes = text.as_bytes();
                let bytes = bytes.get(at..at + 8).ok_or_else(|| mlua::Error::runtime("data string too short"))?;
                values.push_back(Value::Number(f64::from_le_bytes(bytes.try_into().unwrap())));
                at += 8;
            }
            values.push_back(Value::Number((at + 1) as f64));
            Ok(values)
        })
        .unwrap();
    let packing = lua.create_table().unwrap();
    packing.set("pack", pack).unwrap();
    packing.set("unpack", unpack).unwrap();
    packing
}
