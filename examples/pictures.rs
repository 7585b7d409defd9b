//! Draws what each algorithm lets through of the same traffic, from the real strategies on a manual clock.
//!
//! `cargo run --example pictures` writes the pictures of the README and the guide into `pictures/`.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt::Write,
    path::{Path, PathBuf},
    task::{Context, Poll, Waker},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use tollgate::{
    Decision, Key, Limit, Limiter, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    time::{BoxFuture, ManualClock},
};

/// How far the clock moves at a time; requests arrive at its ticks.
const TICK_MS: u32 = 10;
/// How long it is watched.
const WATCHED_MS: u32 = 4_000;
/// How much time a bar stands for.
const BAR_MS: u32 = 100;

/// Okabe and Ito's blue and orange, which nearly everybody can tell apart, and which differ in lightness too.
const STARTS: RGBColor = RGBColor(0, 114, 178);
const REFUSED: RGBColor = RGBColor(230, 159, 0);
const ARRIVES: RGBColor = RGBColor(110, 118, 129);
const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(31, 35, 40);
const LINES: RGBColor = RGBColor(208, 215, 222);

/// The same picture for those who read light on dark. A viewer that does not know the query shows it dark on light, on
/// a paper of its own.
const DARK: &str = "<style>@media(prefers-color-scheme:dark){\
    [fill=\"#FFFFFF\"]{fill:#0D1117}[fill=\"#1F2328\"]{fill:#E6EDF3}[stroke=\"#D0D7DE\"]{stroke:#3D444D}\
    [fill=\"#0072B2\"]{fill:#56B4E9}[fill=\"#6E7681\"]{fill:#8B949E}}</style>";

/// One traffic, and how many requests of it arrive when.
struct Traffic {
    name: &'static str,
    about: &'static str,
    arrivals: BTreeMap<u32, u32>,
}

fn traffics() -> [Traffic; 3] {
    let edge = [900, 910, 920, 930, 940, 950, 960, 970, 980, 990];
    let edge = edge.into_iter().flat_map(|before| [(before, 1), (before + 100, 1)]);
    [
        Traffic {
            name: "steady",
            about: "Steady: 20 requests a second, twice the limit of 10 a second",
            arrivals: (0..WATCHED_MS / 50).map(|count| (count * 50, 1)).collect(),
        },
        Traffic {
            name: "bursty",
            about: "Bursty: 15 requests at once, four times, at a limit of 10 a second",
            arrivals: [(200, 15), (1_200, 15), (1_700, 15), (3_200, 15)].into(),
        },
        Traffic {
            name: "edge",
            about: "At a window's edge: 10 requests on each side of it, then two more tens, at a limit of 10 a second",
            arrivals: edge.chain([(1_500, 10), (2_000, 10)]).collect(),
        },
    ]
}

/// A rule of ten per second for each client, counted in one of five ways.
fn rules() -> [(&'static str, Rule<&'static str>); 5] {
    let rule = |limit| Rule::new("client", limit, |client: &&'static str| Some(Key::from(*client)));
    let ten = Limit::per_second(10);
    [
        ("token bucket", rule(ten).algorithm(TokenBucket)),
        ("leaky bucket", rule(ten.burst(10)).algorithm(LeakyBucket)),
        ("fixed window", rule(ten).algorithm(FixedWindow)),
        ("sliding window log", rule(ten).algorithm(SlidingWindowLog)),
        ("sliding window counter", rule(ten).algorithm(SlidingWindowCounter)),
    ]
}

/// What a rule made of a traffic.
#[derive(Debug, Default)]
struct Seen {
    /// When each request that passed was let through.
    starts: Vec<u32>,
    /// When each that did not was refused.
    refused: Vec<u32>,
}

impl Seen {
    /// The most starts in any interval of a second, its end not in it.
    fn most_in_a_second(&self) -> usize {
        let from = |start: &u32| self.starts.iter().filter(|other| (*start..start + 1_000).contains(*other)).count();
        self.starts.iter().map(from).max().unwrap_or(0)
    }
}

/// Lets the traffic run against the real rule; who has to wait for a turn is held as the layer would hold it.
fn run(rule: Rule<&'static str>, traffic: &Traffic) -> Result<Seen, Box<dyn Error>> {
    let clock = ManualClock::new();
    let limiter = Limiter::builder([rule]).clock(clock.clone()).build()?;
    let mut seen = Seen::default();
    let mut waiting: Vec<BoxFuture<'_, Result<Decision, tollgate::Error>>> = Vec::new();
    for tick in 0..WATCHED_MS / TICK_MS {
        let now = tick * TICK_MS;
        for _ in 0..traffic.arrivals.get(&now).copied().unwrap_or(0) {
            waiting.push(Box::pin(limiter.acquire(&"ana")));
        }
        let mut failed = None;
        waiting.retain_mut(|acquire| match acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => true,
            Poll::Ready(Ok(decision)) => {
                let list = if decision.is_allowed() { &mut seen.starts } else { &mut seen.refused };
                list.push(now);
                false
            }
            Poll::Ready(Err(error)) => {
                failed = Some(error);
                false
            }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        clock.advance(Duration::from_millis(TICK_MS.into()));
    }
    Ok(seen)
}

/// How many of `times` fall into each bar.
fn bars(times: impl IntoIterator<Item = u32>) -> BTreeMap<u32, u32> {
    let mut bars = BTreeMap::new();
    for time in times {
        *bars.entry(time / BAR_MS).or_default() += 1;
    }
    bars
}

/// A row of the picture: its name, what is said beside it, and bars on top of each other.
struct Row {
    name: &'static str,
    notes: Vec<String>,
    bars: Vec<(RGBColor, BTreeMap<u32, u32>)>,
}

impl Row {
    /// The height of its highest bar.
    fn highest(&self) -> u32 {
        let mut heights: BTreeMap<u32, u32> = BTreeMap::new();
        for (at, height) in self.bars.iter().flat_map(|(_, bars)| bars) {
            *heights.entry(*at).or_default() += height;
        }
        heights.into_values().max().unwrap_or(0)
    }
}

fn rows(traffic: &Traffic) -> Result<Vec<Row>, Box<dyn Error>> {
    let arrivals: Vec<_> = traffic.arrivals.iter().flat_map(|(at, count)| (0..*count).map(|_| *at)).collect();
    let total = arrivals.len();
    let bars_of_arrivals = vec![(ARRIVES, bars(arrivals))];
    let mut rows = vec![Row { name: "what arrives", notes: vec![format!("{total} requests")], bars: bars_of_arrivals }];
    for (name, rule) in rules() {
        let seen = run(rule, traffic)?;
        let mut notes = vec![format!("{} of {total} start", seen.starts.len())];
        let held = total - seen.starts.len() - seen.refused.len();
        if held > 0 {
            notes.push(format!("{held} still wait"));
        }
        notes.push(format!("{} in the busiest second", seen.most_in_a_second()));
        rows.push(Row { name, notes, bars: vec![(STARTS, bars(seen.starts)), (REFUSED, bars(seen.refused))] });
    }
    Ok(rows)
}

const SIZE: (u32, u32) = (880, 690);
/// Where the bars are, and how much of the height a row has.
const LEFT: i32 = 66;
const RIGHT: i32 = 680;
const TOP: i32 = 72;
const ROW: i32 = 94;

type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Text of so many pixels (plotters scales what it is given by 1 / 1.24).
fn ink(pixels: u32) -> TextStyle<'static> {
    ("sans-serif", f64::from(pixels) * 1.24).into_text_style(&SIZE).color(&INK)
}

/// The picture of one traffic, as SVG.
fn draw(traffic: &Traffic) -> Result<String, Box<dyn Error>> {
    let rows = rows(traffic)?;
    let highest = rows.iter().map(Row::highest).max().unwrap_or(0);
    let mut svg = String::new();
    {
        let sheet = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        sheet.fill(&PAPER)?;
        sheet.draw_text(traffic.about, &ink(17), (LEFT, 14))?;
        let parts =
            [(0, ARRIVES, "arrives"), (110, STARTS, "starts (at its turn, if held)"), (340, REFUSED, "is refused")];
        for (left, color, text) in parts {
            let left = LEFT + left;
            sheet.draw(&Rectangle::new([(left, 45), (left + 12, 57)], color.filled()))?;
            sheet.draw_text(text, &ink(14), (left + 18, 44))?;
        }
        let mut top = TOP;
        for row in &rows {
            draw_row(&sheet, row, top, highest)?;
            top += ROW;
        }
        let centred = Pos::new(HPos::Center, VPos::Top);
        for second in 0..=4 {
            let at = LEFT + (RIGHT - LEFT) * second / 4;
            sheet.draw_text(&second.to_string(), &ink(13).pos(centred), (at, top + 4))?;
        }
        let below = "time in seconds; a window that is aligned begins at a whole one";
        sheet.draw_text(below, &ink(14).pos(centred), ((LEFT + RIGHT) / 2, top + 24))?;
        let upright = ink(14).transform(FontTransform::Rotate270).pos(centred);
        sheet.draw_text("requests in 0.1 s", &upright, (12, (TOP + top) / 2))?;
        sheet.present()?;
    }
    finish(&svg)
}

fn draw_row(sheet: &Sheet<'_>, row: &Row, top: i32, highest: u32) -> Result<(), Box<dyn Error>> {
    let size = (u32::try_from(RIGHT - LEFT + 30)?, u32::try_from(ROW)?);
    let mut chart = ChartBuilder::on(&sheet.clone().shrink((LEFT - 30, top), size))
        .margin_top(26)
        .y_label_area_size(30)
        .build_cartesian_2d(0..WATCHED_MS, 0..highest)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(LINES)
        .axis_style(LINES)
        .x_labels(5)
        .y_labels(4)
        .label_style(ink(12))
        .draw()?;
    let mut below: BTreeMap<u32, u32> = BTreeMap::new();
    for (color, bars) in &row.bars {
        for (at, height) in bars {
            let from = below.entry(*at).or_default();
            let (left, right) = (at * BAR_MS + BAR_MS / 10, (at + 1) * BAR_MS - BAR_MS / 10);
            chart.draw_series([Rectangle::new([(left, *from), (right, *from + height)], color.filled())])?;
            *from += height;
        }
    }
    sheet.draw_text(row.name, &ink(15), (LEFT, top + 6))?;
    let mut line = top + 32;
    for note in &row.notes {
        sheet.draw_text(note, &ink(14), (RIGHT + 16, line))?;
        line += 19;
    }
    Ok(())
}

/// Leaves out what is so anyway, and adds the colours for those who read light on dark.
fn finish(svg: &str) -> Result<String, Box<dyn Error>> {
    let svg = svg.replace(" opacity=\"1\"", "").replace(" stroke=\"none\"", "").replace(" stroke-width=\"1\"", "");
    let (open, rest) = svg.split_once(">\n").ok_or("an SVG begins with a tag")?;
    Ok(format!("{open}>\n{DARK}\n{rest}"))
}

/// Every file that this example writes, by its name: the pictures, and the links by which rustdoc, which keeps no files
/// beside its pages, finds them.
fn files() -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let (mut files, mut links) = (BTreeMap::new(), String::new());
    for traffic in traffics() {
        let svg = draw(&traffic)?;
        writeln!(links, "[{} traffic]: data:image/svg+xml;base64,{}", traffic.name, STANDARD.encode(&svg))?;
        files.insert(format!("{}.svg", traffic.name), svg);
    }
    files.insert("links.md".into(), links);
    Ok(files)
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pictures")
}

fn main() -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(directory())?;
    for (name, text) in files()? {
        std::fs::write(directory().join(&name), text)?;
        println!("pictures/{name}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_in_the_repository_show_what_the_algorithms_do() {
        let files = files().unwrap();
        for (name, text) in &files {
            let kept = std::fs::read_to_string(directory().join(name)).unwrap_or_default();
            assert!(*text == kept, "pictures/{name} is out of date: cargo run --example pictures");
        }
        let kept = std::fs::read_dir(directory()).unwrap().count();
        assert_eq!(kept, files.len(), "something in pictures/ is none of these pictures");
    }

    fn seen(traffic: &str) -> BTreeMap<&'static str, (usize, usize)> {
        let traffic = traffics().into_iter().find(|one| one.name == traffic).unwrap();
        let what = |(name, rule)| {
            let seen = run(rule, &traffic).unwrap();
            (name, (seen.starts.len(), seen.most_in_a_second()))
        };
        rules().into_iter().map(what).collect()
    }

    #[test]
    fn only_the_fixed_window_lets_twice_the_limit_through_around_an_edge() {
        let seen = seen("edge");
        assert_eq!(seen["fixed window"], (30, 20));
        assert_eq!(seen["sliding window log"], (20, 10));
        assert_eq!(seen["sliding window counter"], (20, 15));
        assert_eq!(seen["token bucket"], (21, 16));
        assert_eq!(seen["leaky bucket"], (21, 10));
    }

    #[test]
    fn a_token_bucket_gives_its_burst_and_then_the_rate() {
        // Ten at first, and one for each tenth of a second that has passed since.
        assert_eq!(seen("steady")["token bucket"], (49, 19));
    }
}
