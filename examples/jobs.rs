//! The engine without HTTP: a worker that paces its calls to a partner and keeps tenants within a budget.
//!
//! `cargo run --example jobs` works through a few jobs on a manual clock and prints when each ran.

use std::time::Duration;

use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::LeakyBucket,
    time::{Clock, ManualClock},
};

type Error = Box<dyn std::error::Error>;

#[derive(Debug)]
struct Job {
    tenant: &'static str,
    /// What the job is thought to take; it is charged first, and the truth is settled afterwards.
    estimated_pages: u64,
    pages: u64,
}

struct Worker {
    clock: ManualClock,
    budget: Limiter<Job>,
    partner: Limiter<Job>,
}

fn app() -> Result<Worker, Error> {
    let clock = ManualClock::new();
    // A hundred pages a minute for each tenant.
    let budget = Rule::new("tenant", Limit::per_minute(100), |job: &Job| Some(Key::from(job.tenant)))
        .cost(|job| job.estimated_pages);
    // The partner takes two calls a second and not one more: jobs wait for their turn, up to ten of them.
    let partner = Rule::global("partner", Limit::per_second(2).burst(10)).algorithm(LeakyBucket);
    Ok(Worker {
        budget: Limiter::builder([budget]).clock(clock.clone()).build()?,
        partner: Limiter::builder([partner]).clock(clock.clone()).build()?,
        clock,
    })
}

impl Worker {
    /// Runs a job, or says why not.
    async fn run(&self, job: &Job) -> Result<String, Error> {
        let (decision, receipt) = self.budget.reserve(job).await?;
        if let Some(refusal) = decision.refusal() {
            return Ok(format!("{}: {refusal:?}, retry after {:?}", job.tenant, decision.retry_after()));
        }
        if !self.partner.acquire(job).await?.is_allowed() {
            receipt.give_back();
            return Ok(format!("{}: the queue is full", job.tenant));
        }
        receipt.settle(job.pages);
        Ok(format!("{}: {} pages at {:?}", job.tenant, job.pages, self.clock.now()))
    }

    /// Runs all jobs at once, while the clock moves on.
    async fn run_all(&self, jobs: &[Job]) -> Result<Vec<String>, Error> {
        let running = futures_util::future::try_join_all(jobs.iter().map(|job| self.run(job)));
        let time = async {
            loop {
                tokio::task::yield_now().await;
                self.clock.advance(Duration::from_millis(100));
            }
        };
        tokio::select! {
            biased;
            done = running => done,
            () = time => Err("time goes on for ever".into()),
        }
    }
}

const JOBS: [Job; 5] = [
    Job { tenant: "acme", estimated_pages: 80, pages: 30 },
    Job { tenant: "acme", estimated_pages: 80, pages: 80 }, // does not fit beside the first
    Job { tenant: "zeta", estimated_pages: 10, pages: 10 },
    Job { tenant: "zeta", estimated_pages: 10, pages: 25 },
    Job { tenant: "zeta", estimated_pages: 101, pages: 101 }, // can never fit
];

#[tokio::main]
async fn main() -> Result<(), Error> {
    let worker = app()?;
    for line in worker.run_all(&JOBS).await? {
        println!("{line}");
    }
    let left = worker.budget.peek(&JOBS[0]).await?.tightest().map(|rule| rule.verdict.remaining);
    println!("acme has {} pages left", left.unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn paces_the_partner_and_settles_the_budget() {
        let worker = app().unwrap();
        let lines = worker.run_all(&JOBS).await.unwrap();
        assert_eq!(
            lines,
            [
                "acme: 30 pages at 0ns",
                "acme: Limited, retry after Some(6s)",
                "zeta: 10 pages at 500ms",
                "zeta: 25 pages at 1s",
                "zeta: Limited, retry after None",
            ]
        );
        let job = Job { tenant: "acme", estimated_pages: 70, pages: 70 };
        assert!(worker.budget.check(&job).await.unwrap().is_allowed(), "50 of the 80 estimated pages came back");
    }
}
