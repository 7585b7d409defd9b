//! The five algorithms on the same traffic, from the real strategies on a manual clock.
//!
//! `cargo run --example algorithms` prints how many requests each lets pass, what it tells who is refused, and what
//! happens at a window's edge.

use std::{
    fmt::Write,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response};
use tollgate::{
    Decision, Key, Limit, Limiter, RateLimitLayer, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    key,
    time::ManualClock,
};
use tower::{ServiceBuilder, ServiceExt, service_fn};

type Error = Box<dyn std::error::Error>;
type Acquire<'a> = Pin<Box<dyn Future<Output = Result<Decision, tollgate::Error>> + 'a>>;

/// A rule of five per second for each client, counted in one of five ways.
fn rules() -> [(&'static str, Rule<&'static str>); 5] {
    let rule = |limit| Rule::new("client", limit, |client: &&'static str| Some(Key::from(*client)));
    let five = Limit::per_second(5);
    [
        ("token bucket", rule(five).algorithm(TokenBucket)),
        ("leaky bucket", rule(five.burst(5)).algorithm(LeakyBucket)),
        ("fixed window", rule(five).algorithm(FixedWindow)),
        ("sliding log", rule(five).algorithm(SlidingWindowLog)),
        ("sliding counter", rule(five).algorithm(SlidingWindowCounter)),
    ]
}

/// Several requests that arrive at one instant: those that have to wait for their turn are still pending.
struct Arrivals<'a> {
    waiting: Vec<Acquire<'a>>,
    passed: usize,
    refused: Vec<Decision>,
}

fn arrive<'a>(limiter: &'a Limiter<&'static str>, count: usize) -> Result<Arrivals<'a>, Error> {
    let mut arrivals = Arrivals { waiting: Vec::new(), passed: 0, refused: Vec::new() };
    for _ in 0..count {
        let mut acquire: Acquire<'_> = Box::pin(limiter.acquire(&"ana"));
        match poll(&mut acquire) {
            Poll::Ready(decision) => {
                let decision = decision?;
                if decision.is_allowed() {
                    arrivals.passed += 1;
                } else {
                    arrivals.refused.push(decision);
                }
            }
            Poll::Pending => arrivals.waiting.push(acquire),
        }
    }
    Ok(arrivals)
}

fn poll(acquire: &mut Acquire<'_>) -> Poll<Result<Decision, tollgate::Error>> {
    acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Seven at once, then who waits is served as the clock moves.
fn seven_at_once(out: &mut String) -> Result<(), Error> {
    writeln!(out, "limit 5 per second; 7 requests arrive at once at t=0:")?;
    for (name, rule) in rules() {
        let clock = ManualClock::new();
        let limiter = Limiter::builder([rule]).clock(clock.clone()).build()?;
        let mut arrivals = arrive(&limiter, 7)?;
        let allowed = arrivals.passed + arrivals.waiting.len();
        let told = arrivals.refused.first().and_then(Decision::retry_after).unwrap_or_default();
        write!(
            out,
            "  {name:<16}: {allowed} allowed, {} rejected, Retry-After {:.1} s",
            arrivals.refused.len(),
            told.as_secs_f64()
        )?;
        if !arrivals.waiting.is_empty() {
            write!(out, "; served at t={}", ["0.0"].repeat(arrivals.passed).join(", "))?;
            for tenth in 1..=10 {
                clock.advance(Duration::from_millis(100));
                let before = arrivals.waiting.len();
                arrivals.waiting.retain_mut(|acquire| poll(acquire).is_pending());
                for _ in arrivals.waiting.len()..before {
                    write!(out, ", {:.1}", f64::from(tenth) / 10.0)?;
                }
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// What the edge of a window lets through.
fn boundary_burst(out: &mut String) -> Result<(), Error> {
    writeln!(out, "boundary burst: 5 requests at t=0.9, 5 at t=1.0, 5 at t=1.5 (allowed counts):")?;
    for (name, rule) in rules() {
        let clock = ManualClock::new();
        let limiter = Limiter::builder([rule]).clock(clock.clone()).build()?;
        write!(out, "  {name:<16}:")?;
        let mut all = Vec::new();
        for (at, since_last) in [("0.9", 900), ("1.0", 100), ("1.5", 500)] {
            clock.advance(Duration::from_millis(since_last));
            let arrivals = arrive(&limiter, 5)?;
            write!(out, " t={at} -> {} ", arrivals.passed + arrivals.waiting.len())?;
            all.push(arrivals); // who waits keeps its place in the queue
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The sixth request of a minute, through the whole layer.
async fn headers_of_a_refusal(out: &mut String) -> Result<(), Error> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(12));
    let rule = Rule::new("client", Limit::per_minute(5), key::header("x-client")).algorithm(FixedWindow);
    let layer = RateLimitLayer::from(Limiter::builder([rule]).clock(clock).build()?);
    let hello = service_fn(async |_: Request<()>| Ok::<_, Error>(Response::new(String::from("hello"))));
    let service = ServiceBuilder::new().layer(layer).service(hello);
    for _ in 0..5 {
        service.clone().oneshot(Request::builder().header("x-client", "ana").body(())?).await?;
    }
    let sixth = service.oneshot(Request::builder().header("x-client", "ana").body(())?).await?;
    let header = |name: &str| sixth.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned();
    writeln!(
        out,
        "{} headers after the 6th request in a minute: X-RateLimit-Limit: {}, X-RateLimit-Remaining: {}, Retry-After: {}",
        sixth.status().as_u16(),
        header("x-ratelimit-limit"),
        header("x-ratelimit-remaining"),
        header("retry-after")
    )?;
    Ok(())
}

/// Many threads and one bucket, while time stands still.
fn threads(out: &mut String) -> Result<(), Error> {
    let rule = Rule::new("client", Limit::per_second(100), |client: &&'static str| Some(Key::from(*client)));
    let limiter = Limiter::builder([rule]).clock(ManualClock::new()).build()?;
    let (allowed, rejected) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let passes = limiter.check_now(&"ana").is_ok_and(|decision| decision.is_allowed());
                    let count = if passes { &allowed } else { &rejected };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    writeln!(
        out,
        "8 threads x 100 requests, capacity 100, frozen clock: allowed={} rejected={}",
        allowed.into_inner(),
        rejected.into_inner()
    )?;
    Ok(())
}

/// Exhaustion and recovery: three per three seconds.
fn recovery(out: &mut String) -> Result<(), Error> {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(10));
    let limit = Limit::new(3, Duration::from_secs(3));
    let rule = Rule::new("client", limit, |client: &&'static str| Some(Key::from(*client)));
    let limiter = Limiter::builder([rule]).clock(clock.clone()).build()?;
    let say = |decision: Decision| match decision.retry_after() {
        None => String::from("allow"),
        Some(wait) => format!("deny (retry after {}ms)", wait.as_millis()),
    };
    for _ in 0..4 {
        writeln!(out, "{}", say(limiter.check_now(&"api-key-7")?))?;
    }
    clock.advance(Duration::from_secs(1));
    writeln!(out, "after 1000ms: {}", say(limiter.check_now(&"api-key-7")?))?;
    Ok(())
}

/// Everything this example has to say.
async fn app() -> Result<String, Error> {
    let mut out = String::new();
    seven_at_once(&mut out)?;
    boundary_burst(&mut out)?;
    headers_of_a_refusal(&mut out).await?;
    threads(&mut out)?;
    recovery(&mut out)?;
    Ok(out)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    print!("{}", app().await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: &str = "\
limit 5 per second; 7 requests arrive at once at t=0:
token bucket : 5 allowed, 2 rejected, Retry-After 0.2 s
leaky bucket : 5 allowed, 2 rejected, Retry-After 0.2 s; served at t=0.0, 0.2, 0.4, 0.6, 0.8
fixed window : 5 allowed, 2 rejected, Retry-After 1.0 s
sliding log : 5 allowed, 2 rejected, Retry-After 1.0 s
sliding counter : 5 allowed, 2 rejected, Retry-After 1.2 s
boundary burst: 5 requests at t=0.9, 5 at t=1.0, 5 at t=1.5 (allowed counts):
token bucket : t=0.9 -> 5 t=1.0 -> 0 t=1.5 -> 3
leaky bucket : t=0.9 -> 5 t=1.0 -> 0 t=1.5 -> 3
fixed window : t=0.9 -> 5 t=1.0 -> 5 t=1.5 -> 0
sliding log : t=0.9 -> 5 t=1.0 -> 0 t=1.5 -> 0
sliding counter : t=0.9 -> 5 t=1.0 -> 0 t=1.5 -> 2
429 headers after the 6th request in a minute: X-RateLimit-Limit: 5, X-RateLimit-Remaining: 0, Retry-After: 48
8 threads x 100 requests, capacity 100, frozen clock: allowed=100 rejected=700
allow
allow
allow
deny (retry after 1000ms)
after 1000ms: allow
";

    /// The text with each run of spaces as one.
    fn lines(text: &str) -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[tokio::test]
    async fn says_what_each_algorithm_does() {
        assert_eq!(lines(&app().await.unwrap()), lines(EXPECTED));
    }
}
