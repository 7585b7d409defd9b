//! A `redis-server` process of our own.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    directory: PathBuf,
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The program; `REDIS_SERVER` names another one, Valkey's say.
fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

fn spawn(port: u16, directory: &PathBuf, more: &[&str]) -> Child {
    let program = program();
    let mut command = Command::new(&program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    command.args(["--enable-debug-command", "yes", "--dir"]).arg(directory).args(more);
    match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => panic!("{program} cannot be started ({error}); `scripts/setup redis-server` installs Debian's"),
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(more: &[&str]) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tollgate-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        // Somebody else may take the port before the server does.
        for _ in 0..20 {
            let port = free_port();
            let mut server = Self { child: spawn(port, &directory, more), port, directory: directory.clone() };
            if server.comes_up() {
                return server;
            }
        }
        panic!("no redis-server came up");
    }

    /// Waits until the process answers, or has ended.
    pub(crate) fn comes_up(&mut self) -> bool {
        let give_up = Instant::now() + Duration::from_secs(20);
        while Instant::now() < give_up {
            if let Ok(Some(_)) = self.child.try_wait() {
                return false;
            }
            if let Ok(client) = ::redis::Client::open(self.url())
                && let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_millis(500))
                && ::redis::cmd("PING").query::<String>(&mut connection).is_ok()
            {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The time by its own clock, since the Unix epoch.
    pub(crate) fn now(&self) -> Duration {
        let [secs, micros]: [u64; 2] = self.run(&["TIME"]);
        Duration::from_secs(secs) + Duration::from_micros(micros)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// A plain connection of the test's own.
    pub(crate) fn ask(&self) -> ::redis::Connection {
        ::redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Runs one command by the test's own connection.
    pub(crate) fn run<T: ::redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut parts = command.iter();
        let mut run = ::redis::cmd(parts.next().unwrap());
        for part in parts {
            run.arg(*part);
        }
        run.query(&mut self.ask()).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    /// Stops the process without ending it.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn go_on(&self) {
        self.signal("-CONT");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts the process again, on the same port, without waiting for it.
    pub(crate) fn start_again(&mut self, more: &[&str]) {
        self.child = spawn(self.port, &self.directory, more);
    }

    pub(crate) fn directory(&self) -> &PathBuf {
        &self.directory
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
