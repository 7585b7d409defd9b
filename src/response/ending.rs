//! What becomes of an HTTP request that holds something until its end.

use http::{Request, Response};

use crate::store::HeldReceipt;

/// Shows a response's head, which is taken off for that, and put back.
pub(super) fn judged<B>(response: Response<B>, judge: &mut dyn FnMut(&Response<()>)) -> Response<B> {
    let (head, body) = response.into_parts();
    let head = Response::from_parts(head, ());
    judge(&head);
    head.map(|()| body)
}

/// Leaves what a request holds in its extensions, beside what layers further out have left there.
pub(super) fn hand_over<B>(request: &mut Request<B>, held: HeldReceipt) {
    let outer = request.extensions_mut().remove::<HeldReceipt>();
    request.extensions_mut().insert(held.within(outer));
}
