//! A log that somebody reads, and metrics that somebody scrapes.

use crate::cases::Operation;

/// Makes a case with a log at `INFO` that is read by nobody in particular: what it costs to write is the reader's
/// matter.
#[cfg(feature = "tracing")]
pub fn logged(make: impl FnOnce() -> Operation) -> Operation {
    use tracing::{Event, Level, Metadata, Subscriber, level_filters::LevelFilter, span};

    struct Reader;
    impl Subscriber for Reader {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::INFO
        }
        fn max_level_hint(&self) -> Option<LevelFilter> {
            Some(LevelFilter::INFO)
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    tracing::subscriber::set_global_default(Reader).expect("each case is counted by a process of its own");
    make()
}

#[cfg(not(feature = "tracing"))]
pub fn logged(make: impl FnOnce() -> Operation) -> Operation {
    make()
}

/// Makes a case with a recorder of Prometheus' metrics.
#[cfg(feature = "metrics")]
pub fn measured(make: impl FnOnce() -> Operation) -> Operation {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::set_global_recorder(recorder).expect("each case is counted by a process of its own");
    make()
}

#[cfg(not(feature = "metrics"))]
pub fn measured(make: impl FnOnce() -> Operation) -> Operation {
    make()
}
