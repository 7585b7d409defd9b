//! Who asks, in which order.

use std::net::{IpAddr, Ipv4Addr};

use crate::harness::Random;

/// The keys of a series of checks, in the order in which they come, as text and as addresses.
///
/// They lie in memory in that order, so that reading a key misses no cache, as in a request that has just been read;
/// what the stores keep is in another order.
pub struct Stream {
    pub texts: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl Stream {
    /// Returns clients by their numbers.
    pub fn of(clients: Vec<u32>) -> Self {
        Self {
            // 14 bytes, as an API key's number, a user name or an address in text has.
            texts: clients.iter().map(|client| format!("client{client:08}")).collect(),
            addresses: clients.iter().map(|client| address(*client)).collect(),
        }
    }

    /// Returns clients whose text is 64 bytes long.
    pub fn of_long_texts(clients: Vec<u32>) -> Self {
        let mut stream = Self::of(clients);
        stream.texts.iter_mut().for_each(|text| text.push_str(&"-a-session-token-of-64-bytes".repeat(2)[..50]));
        stream
    }

    /// Returns `keys` clients once each, in a random order.
    pub fn shuffled(keys: u32, seed: u64) -> Self {
        Self::of(shuffle(keys, seed))
    }

    /// Returns `length` clients out of `keys`, the first ones far more often than the last: Zipf with exponent 1.
    pub fn zipf(keys: u32, length: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Which client has which rank is random too.
        let clients = shuffle(keys, seed ^ 1);
        let span = f64::from(keys).ln();
        let rank = |unit: f64| ((unit * span).exp() as usize).saturating_sub(1).min(keys as usize - 1);
        Self::of((0..length).map(|_| clients[rank(random.unit())]).collect::<Vec<_>>())
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }
}

fn shuffle(keys: u32, seed: u64) -> Vec<u32> {
    let mut clients: Vec<_> = (0..keys).collect();
    Random::new(seed).shuffle(&mut clients);
    clients
}

/// Returns a client's address: neighbours are not neighbours.
pub fn address(client: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(client.wrapping_mul(0x9e37_79b1)))
}
