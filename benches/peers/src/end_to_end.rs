//! Requests per second over loopback: a server on one core, connections that are kept alive on another.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
};

use crate::{
    harness::{Report, Scale, median, turns},
    stacks,
};

const CONNECTIONS: usize = 64;

const SERVED: [&str; 10] = [
    "none",
    "own_429",
    "own_429_alike",
    "tollgate_off",
    "tower_governor",
    "tollgate_ietf",
    "tower_governor_headers",
    "tollgate_x",
    "refused_tollgate_x",
    "refused_tower_governor",
];

pub fn run(scale: Scale, report: &mut Report) {
    let servers: Result<Vec<_>, String> = SERVED.iter().map(|name| Server::start(name)).collect();
    let servers = match servers {
        Ok(servers) => servers,
        Err(why) => return report.failure(format!("end to end: {why}")),
    };
    let (rounds, time) = scale.pick((3, Duration::from_millis(300)), (8, Duration::from_secs(2)));
    let mut rates = vec![Vec::new(); servers.len()];
    let mut costs = vec![Vec::new(); servers.len()];
    let mut busiest: f64 = 0.0;
    for at in turns(servers.len(), rounds) {
        match servers[at].load(time) {
            Ok(load) => {
                rates[at].push(load.rate);
                costs[at].push(load.server_nanos);
                busiest = busiest.max(load.spared);
            }
            Err(why) => return report.failure(format!("end to end, {}: {why}", SERVED[at])),
        }
    }
    let rates: Vec<_> = rates.into_iter().map(median).collect();
    let costs: Vec<_> = costs.into_iter().map(median).collect();
    report.table("End to end, one server thread, 64 connections", &["req/s", "of none", "CPU ns/req"]);
    for (at, name) in SERVED.iter().enumerate() {
        report.row(name, &[rates[at], rates[at] / rates[0], costs[at]]);
        report.value("rps", name, rates[at]);
    }
    if !pinning() {
        println!("no taskset here: the server shares its core with whatever else runs");
    }
    if busiest > 0.1 {
        println!(
            "the server waited up to {:.0} % of a turn: the load generator or the machine was its limit",
            busiest * 100.0
        );
    }
    for (name, ours, theirs) in COMPARED {
        let of = |values: &[f64], name: &str| {
            values[SERVED.iter().position(|served| *served == name).expect("a stack that was served")]
        };
        // Requests per second: more is better. The server's processor time: less is.
        report.ratio(format!("rps_{name}"), of(&rates, ours), of(&rates, theirs));
        report.ratio(format!("cpu_{name}"), of(&costs, ours), of(&costs, theirs));
    }
}

const COMPARED: [(&str, &str, &str); 7] = [
    ("off_over_tower_governor", "tollgate_off", "tower_governor"),
    ("ietf_over_tower_governor_headers", "tollgate_ietf", "tower_governor_headers"),
    ("x_over_tower_governor_headers", "tollgate_x", "tower_governor_headers"),
    ("off_over_none", "tollgate_off", "none"),
    ("refused_over_tower_governor", "refused_tollgate_x", "refused_tower_governor"),
    ("refused_over_own_429", "refused_tollgate_x", "own_429"),
    ("refused_over_own_429_alike", "refused_tollgate_x", "own_429_alike"),
];

fn pinning() -> bool {
    Command::new("taskset").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// This program as a child, on one core where that can be said.
fn child(core: &str, arguments: &[&str]) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = if pinning() {
        let mut command = Command::new("taskset");
        command.args(["-c", core]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| format!("starting {arguments:?}: {error}"))
}

fn first_line(child: &mut Child) -> Result<String, String> {
    let output = child.stdout.take().ok_or("a child without an output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).map_err(|error| error.to_string())?;
    if line.trim().is_empty() { Err("a child said nothing".into()) } else { Ok(line.trim().to_owned()) }
}

/// A server in a process of its own, ended when this is dropped.
struct Server {
    child: Child,
    address: String,
    status: u16,
}

/// What one turn of load measured.
struct Load {
    /// Requests per second.
    rate: f64,
    /// What one request cost the server's processor.
    server_nanos: f64,
    /// The share of the time in which the server did nothing.
    spared: f64,
}

impl Server {
    fn start(stack: &str) -> Result<Self, String> {
        let mut child = child("0", &["serve", stack])?;
        let address = first_line(&mut child);
        let mut server = Self { child, address: String::new(), status: stacks::by_name(stack).status };
        server.address = address?;
        Ok(server)
    }

    fn load(&self, time: Duration) -> Result<Load, String> {
        let (used, start) = (self.processor_time()?, Instant::now());
        let millis = time.as_millis().to_string();
        let mut child = child("1", &["load", &self.address, &self.status.to_string(), &millis])?;
        let line = first_line(&mut child);
        let ended = child.wait().map_err(|error| error.to_string())?;
        let (used, elapsed) = (self.processor_time()? - used, start.elapsed());
        let rate: f64 = line?.parse().map_err(|_| format!("the load generator failed: {ended}"))?;
        // The child's start and end are part of `elapsed`, so what was spared is a little too much.
        let busy = used.as_secs_f64() / time.as_secs_f64().min(elapsed.as_secs_f64());
        let requests = rate * time.as_secs_f64();
        Ok(Load { rate, server_nanos: used.as_nanos() as f64 / requests, spared: (1.0 - busy).max(0.0) })
    }

    /// What the server's processor has done for it so far, in the kernel and outside.
    fn processor_time(&self) -> Result<Duration, String> {
        // Nanoseconds on the processor, by the scheduler's own count.
        let path = format!("/proc/{}/schedstat", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let nanos = text.split(' ').next().and_then(|first| first.parse().ok());
        nanos.map(Duration::from_nanos).ok_or_else(|| format!("{path} does not begin with a number"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to do about either.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime of one thread")
}

/// The child's side: `serve STACK`. Prints its address and serves until it is ended, or until whoever started it is
/// gone.
pub fn serve(arguments: &[String]) {
    let [stack] = arguments else { panic!("serve takes a stack") };
    std::thread::spawn(|| {
        // Nobody writes to it: it ends when the process that holds the other end does.
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        println!("{}", listener.local_addr().expect("a bound socket has an address"));
        axum::serve(listener, stacks::by_name(stack).router()).await.expect("axum's server does not fail");
    });
}

/// The child's side: `load ADDRESS STATUS MILLIS`. Prints the requests per second.
pub fn load(arguments: &[String]) {
    let [address, status, millis] = arguments else { panic!("load takes an address, a status and a time") };
    let address: SocketAddr = address.parse().expect("an address");
    let status = format!("HTTP/1.1 {status} ");
    let time = Duration::from_millis(millis.parse().expect("a number of milliseconds"));
    let rate = runtime().block_on(async {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = Connection::open(address, status.clone()).await;
            // The first one opens the connection and uses up what a refusing layer grants.
            connection.exchange(false).await;
            connections.push(connection);
        }
        let (start, end) = (Instant::now(), Instant::now() + time);
        let mut tasks = tokio::task::JoinSet::new();
        for mut connection in connections {
            tasks.spawn(async move {
                let mut answered = 0_u64;
                while Instant::now() < end {
                    connection.exchange(true).await;
                    answered += 1;
                }
                answered
            });
        }
        let mut answered = 0;
        while let Some(one) = tasks.join_next().await {
            answered += one.expect("a connection's task does not panic");
        }
        answered as f64 / start.elapsed().as_secs_f64()
    });
    println!("{rate}");
}

const REQUEST: &[u8] =
    b"GET / HTTP/1.1\r\nhost: api.example.com\r\nuser-agent: measurement/1.0\r\naccept: */*\r\nx-api-key: client00000001\r\n\r\n";

/// A connection that sends the same request again and again, one at a time.
struct Connection {
    stream: TcpStream,
    status: String,
    buffer: Box<[u8; 4_096]>,
}

impl Connection {
    async fn open(address: SocketAddr, status: String) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket can be told not to wait");
        Self { stream, status, buffer: Box::new([0; 4_096]) }
    }

    /// Sends the request and reads the whole answer.
    async fn exchange(&mut self, checked: bool) {
        self.stream.write_all(REQUEST).await.expect("the server reads");
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await.expect("the server answers");
            assert!(read > 0, "the server closed the connection, or answered more than expected");
            filled += read;
            if is_whole(&self.buffer[..filled]) {
                break;
            }
        }
        assert!(!checked || self.buffer.starts_with(self.status.as_bytes()), "not {}", self.status);
    }
}

/// Whether all of an answer is there: its head, and as much body as that tells.
fn is_whole(answer: &[u8]) -> bool {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    const LENGTH: &[u8] = b"content-length: ";
    let at = answer[..head].windows(LENGTH.len()).position(|name| name == LENGTH).expect("a length");
    let digits = answer[at + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    answer.len() >= head + 4 + length
}
