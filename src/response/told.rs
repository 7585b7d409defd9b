use http::{HeaderValue, Response};

use super::{
    WARNING, Writer,
    headers::{append_lists, is_refusal, only_until, retry_after, write_x},
};
use crate::decision::Decision;

/// What the response to a request that passed will tell. It is made when the request is decided on, so that no decision
/// has to be kept until the response is there.
#[derive(Debug, Default)]
pub struct Told(pub(super) Option<Fields>);

/// The usual ones are small, since they are kept where the response is waited for.
#[derive(Debug)]
pub(super) enum Fields {
    X(Numbers),
    Ietf(Lists),
    Both(Box<(Numbers, Lists)>),
    Custom(Box<(Writer, Decision)>),
    /// These, and the rules that would have refused.
    Warned(Box<(Told, HeaderValue)>),
    /// These, and the decision itself in the extensions.
    Exposed(Box<(Told, Decision)>),
}

/// One rule's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// In seconds.
    pub(super) reset: Option<u64>,
}

/// The two lists of the IETF fields; what is not there has no items.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) policies: Option<HeaderValue>,
    pub(super) limits: Option<HeaderValue>,
}

impl Told {
    /// Writes it on the response that came from further in, once.
    #[inline]
    pub(super) fn write<B>(&mut self, response: &mut Response<B>) {
        if self.0.is_some() {
            self.write_fields(response);
        }
    }

    #[inline(never)]
    fn write_fields<B>(&mut self, response: &mut Response<B>) {
        match &mut self.0 {
            Some(Fields::X(numbers)) => write_told_x(response, *numbers),
            Some(Fields::Ietf(lists)) => write_told_lists(response, lists),
            told => told.take().into_iter().for_each(|fields| fields.write(response)),
        }
    }
}

impl Fields {
    fn write<B>(self, response: &mut Response<B>) {
        match self {
            Self::X(numbers) => write_told_x(response, numbers),
            Self::Ietf(mut lists) => write_told_lists(response, &mut lists),
            Self::Both(both) => {
                let (numbers, mut lists) = *both;
                write_told_x(response, numbers);
                write_told_lists(response, &mut lists);
            }
            Self::Custom(custom) => {
                let (writer, decision) = *custom;
                writer.write(&decision, response.headers_mut());
            }
            Self::Warned(warned) => {
                let (mut told, warning) = *warned;
                told.write(response);
                response.headers_mut().append(WARNING, warning);
            }
            Self::Exposed(exposed) => {
                let (mut told, decision) = *exposed;
                told.write(response);
                response.extensions_mut().insert(decision);
            }
        }
    }
}

fn write_told_x<B>(response: &mut Response<B>, numbers: Numbers) {
    let refused_inside = is_refusal(response);
    write_x(response.headers_mut(), numbers, refused_inside);
}

/// Once: what is written is not there any more.
fn write_told_lists<B>(response: &mut Response<B>, lists: &mut Lists) {
    let headers = response.headers_mut();
    // Draft 11, 6: `Retry-After` shall not be earlier than the end of an effective window that is told. One that is
    // there already comes from further in, where the request was refused, or is the application's own.
    if let Some(last_end) = retry_after(headers) {
        lists.limits = lists.limits.take().and_then(|limits| only_until(&limits, last_end));
    }
    append_lists(headers, lists);
}
