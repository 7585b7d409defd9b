use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{
    response::RefusalBody,
    store::{EndsOnDrop, HeldReceipt},
};

pin_project! {
    /// The body of a limited HTTP service's response: the inner service's own, or a refusal's.
    ///
    /// Size hint, end of stream and trailers are the inner body's own. It asks nothing of the inner body beyond what
    /// its use asks anyway.
    ///
    /// Places [in flight](crate::Limit::in_flight) are free when it has ended, by its last frame or an error, or is
    /// dropped; of clones, when the first has.
    ///
    /// # Examples
    ///
    /// ```
    /// use http_body::Body;
    /// use http_body_util::Full;
    /// use tollgate::ResponseBody;
    ///
    /// let body: ResponseBody<Full<bytes::Bytes>> = ResponseBody::new(Full::from("hello"));
    /// assert_eq!(body.size_hint().exact(), Some(5));
    /// assert!(ResponseBody::<Full<bytes::Bytes>>::default().is_end_stream());
    /// ```
    #[derive(Debug, Clone)]
    pub struct ResponseBody<B, R = RefusalBody> {
        #[pin]
        kind: Kind<B, R>,
    }
}

pin_project! {
    #[project = KindProject]
    #[derive(Debug, Clone)]
    enum Kind<B, R> {
        Inner { #[pin] body: B, held: EndsOnDrop },
        Refusal { #[pin] body: R },
    }
}

impl<B, R> ResponseBody<B, R> {
    /// Wraps the inner service's body.
    pub fn new(body: B) -> Self {
        Self { kind: Kind::Inner { body, held: EndsOnDrop::default() } }
    }

    /// Says that the inner service's body has to end for what is held to be free.
    pub(crate) fn holding(mut self, held: HeldReceipt) -> Self {
        let ends = EndsOnDrop::from(held);
        if let Kind::Inner { held, .. } = &mut self.kind {
            *held = ends;
        }
        self
    }

    /// Wraps a refusal's body.
    pub fn refusal(body: R) -> Self {
        Self { kind: Kind::Refusal { body } }
    }
}

impl<B: Default, R> Default for ResponseBody<B, R> {
    fn default() -> Self {
        Self::new(B::default())
    }
}

/// What polling a body `B` for a frame comes to.
type PollFrame<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

/// A body that can stand in for an inner body `B`: [`RefusalBody`], or any body with the same data whose errors can
/// become the inner one's.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a refusal's body where the inner service's body is `{B}`",
    note = "return `Response<RefusalBody>` (`RefusalBody::from(text)`), or the inner service's own response type: in \
            axum `(status, text).into_response()`"
)]
pub trait BodyFor<B: Body> {
    /// Polls the next frame.
    fn poll_frame_for(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame<B>;
    /// Returns whether the stream has ended.
    fn is_end_stream_for(&self) -> bool;
    /// Returns the bounds of the length.
    fn size_hint_for(&self) -> SizeHint;
}

// Else the compiler tells that one error does not become the other, and not what to return instead.
#[diagnostic::do_not_recommend]
impl<B, R> BodyFor<B> for R
where
    B: Body,
    R: Body<Data = B::Data>,
    R::Error: Into<B::Error>,
{
    fn poll_frame_for(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame<B> {
        self.poll_frame(cx).map_err(Into::into)
    }
    fn is_end_stream_for(&self) -> bool {
        self.is_end_stream()
    }
    fn size_hint_for(&self) -> SizeHint {
        self.size_hint()
    }
}

// `RefusalBody` is no `Body` itself: its errors would have a type, and that would have to become the inner one's.
impl<B> BodyFor<B> for RefusalBody
where
    B: Body,
    B::Data: From<Bytes>,
{
    fn poll_frame_for(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> PollFrame<B> {
        Poll::Ready(self.take().map(|bytes| Ok(Frame::data(bytes.into()))))
    }
    fn is_end_stream_for(&self) -> bool {
        self.is_empty()
    }
    fn size_hint_for(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}

impl<B: Body, R: BodyFor<B>> Body for ResponseBody<B, R> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame<B> {
        match self.project().kind.project() {
            KindProject::Inner { body, held } if !held.is_some() => body.poll_frame(cx),
            KindProject::Inner { mut body, held } => {
                let frame = std::task::ready!(body.as_mut().poll_frame(cx));
                let goes_on = matches!(&frame, Some(Ok(frame)) if !frame.is_trailers()) && !body.is_end_stream();
                if !goes_on {
                    *held = EndsOnDrop::default();
                }
                Poll::Ready(frame)
            }
            KindProject::Refusal { body } => body.poll_frame_for(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, held } => {
                let ended = body.is_end_stream();
                // Nobody polls a body that says so.
                if ended {
                    held.end();
                }
                ended
            }
            Kind::Refusal { body } => body.is_end_stream_for(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Refusal { body } => body.size_hint_for(),
        }
    }
}
