//! A TCP proxy in front of a server, that can be told to misbehave. It counts connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(crate) struct Proxy {
    address: SocketAddr,
    told: Arc<Told>,
}

struct Told {
    connects: AtomicUsize,
    /// Connections with a lower number are black holes: open, and nothing goes through.
    black_holes: watch::Sender<usize>,
    /// The next reply is cut in half, and its connection closed.
    cut: AtomicBool,
}

impl Proxy {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = Arc::new(Told {
            connects: AtomicUsize::new(0),
            black_holes: watch::Sender::new(0),
            cut: AtomicBool::new(false),
        });
        let tell = Arc::clone(&told);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let number = tell.connects.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(carry(client, server, number, Arc::clone(&tell)));
            }
        });
        Self { address, told }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn connects(&self) -> usize {
        self.told.connects.load(Ordering::SeqCst)
    }

    /// Lets nothing more through the connections there are.
    pub(crate) fn swallow_existing(&self) {
        self.told.black_holes.send_replace(self.connects());
    }

    /// Lets nothing more through any connection, new ones included, until told otherwise.
    pub(crate) fn swallow_all(&self) {
        self.told.black_holes.send_replace(usize::MAX);
    }

    /// Lets new connections through. What is swallowed stays so.
    pub(crate) fn let_new_ones_through(&self) {
        self.swallow_existing();
    }

    pub(crate) fn cut_next_reply(&self) {
        self.told.cut.store(true, Ordering::SeqCst);
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, number: usize, told: Arc<Told>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let mut black_holes = told.black_holes.subscribe();
    let (mut asked, mut answered) = ([0; 16_384], [0; 16_384]);
    loop {
        tokio::select! {
            biased;
            () = is_black_hole(&mut black_holes, number) => {
                // Both ends stay open, for as long as the test runs.
                std::future::pending::<()>().await;
            }
            read = client.read(&mut asked) => match read {
                Ok(length) if length > 0 && server.write_all(&asked[..length]).await.is_ok() => {}
                _ => return,
            },
            read = server.read(&mut answered) => match read {
                Ok(length) if length > 0 => {
                    if told.cut.swap(false, Ordering::SeqCst) {
                        let _ = client.write_all(&answered[..length / 2]).await;
                        return;
                    }
                    if client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}

async fn is_black_hole(below: &mut watch::Receiver<usize>, number: usize) {
    let _ = below.wait_for(|below| number < *below).await;
}
