//! How a request was answered, as a rule file says it.

use http::{Response, StatusCode};
use serde::Serialize;

use super::{
    node::{Node, Value},
    read::{Number, Read, Reader},
    registry::{self, Registry},
    shape::Shape,
    texts::Text,
};

/// One status, a class of them, or the name of a registered outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Outcome {
    Status(Number<100, 599>),
    Name(Text),
}

/// Which answers a name stands for that is built in.
fn built_in(name: &str) -> Option<fn(StatusCode) -> bool> {
    Some(match name {
        "1xx" => |status| status.is_informational(),
        "2xx" => |status| status.is_success(),
        "3xx" => |status| status.is_redirection(),
        "4xx" => |status| status.is_client_error(),
        "5xx" => |status| status.is_server_error(),
        "failures" => |status| status.as_u16() >= 400,
        "successes" => |status| status.as_u16() < 400,
        _ => return None,
    })
}

impl Outcome {
    /// The condition, or `None` where its name is not known, which was told of.
    pub(super) fn condition<B>(&self, registry: &Registry<B>) -> Option<registry::Outcome> {
        let name = match self {
            Self::Status(Number(status)) => {
                let status = *status;
                return Some(std::sync::Arc::new(move |response: &Response<()>| {
                    u64::from(response.status().as_u16()) == status
                }));
            }
            Self::Name(Text(name)) => name,
        };
        match built_in(name) {
            Some(is) => Some(std::sync::Arc::new(move |response: &Response<()>| is(response.status()))),
            None => registry.outcomes.get(name).cloned(),
        }
    }

    /// The name that it refers to, where that is not built in.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(Text(name)) if !registry::OUTCOMES.contains(&name.as_str()) => Some(name),
            _ => None,
        }
    }
}

impl Read for Outcome {
    fn shape() -> Shape {
        let text = Shape::Text {
            expected: "a text such as \"4xx\", \"failures\" or a registered outcome",
            pattern: Some("."),
        };
        Shape::Either(vec![Number::<100, 599>::shape(), text])
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match node.value {
            Value::Text(_) => Text::read(node, reader).map(Self::Name),
            Value::Number(_) | Value::Other(_) => Number::read(node, reader).map(Self::Status),
            _ => {
                reader.wrong_type::<Self>(node);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_name_is_a_condition_and_nothing_else_is() {
        assert!(registry::OUTCOMES.iter().all(|name| built_in(name).is_some()));
        assert!(["6xx", "4XX", "failure", ""].iter().all(|name| built_in(name).is_none()));
    }

    #[test]
    fn failures_begin_at_400_and_classes_end_where_the_next_begins() {
        let of = |name: &str, status| built_in(name).unwrap()(StatusCode::from_u16(status).unwrap());
        assert_eq!([of("failures", 399), of("failures", 400), of("failures", 599)], [false, true, true]);
        assert_eq!([of("successes", 101), of("successes", 399), of("successes", 400)], [true, true, false]);
        assert_eq!([of("4xx", 399), of("4xx", 400), of("4xx", 499), of("4xx", 500)], [false, true, true, false]);
        assert_eq!([of("5xx", 499), of("5xx", 500), of("3xx", 301), of("2xx", 204)], [false, true, true, true]);
    }
}
