//! Where short texts are written: one block of memory for many of them, so that a text costs no allocation of its own.

use std::cell::RefCell;

use bytes::{BufMut, Bytes, BytesMut};

use super::digits;

/// A block lives as long as the longest lived text in it.
const BLOCK: usize = 4_096;

/// What most texts are shorter than; a longer one makes its own room.
const SHORT: usize = 512;

thread_local! {
    static ARENA: RefCell<BytesMut> = RefCell::new(BytesMut::with_capacity(BLOCK));
}

/// Returns what `write` writes.
pub(super) fn written(write: impl FnOnce(&mut BytesMut)) -> Bytes {
    ARENA.with(|arena| match arena.try_borrow_mut() {
        Ok(mut arena) => {
            if arena.capacity() < SHORT && !arena.try_reclaim(BLOCK) {
                *arena = BytesMut::with_capacity(BLOCK);
            }
            write(&mut arena);
            arena.split().freeze()
        }
        // A text that is written while another one is has its own block.
        Err(_) => {
            let mut text = BytesMut::with_capacity(SHORT);
            write(&mut text);
            text.freeze()
        }
    })
}

/// Writes `number` in digits.
pub(super) fn put_number(text: &mut BytesMut, mut number: u64) {
    if let Some(digits) = digits::short(number) {
        return text.put_slice(digits);
    }
    let mut digits = [0; 20];
    let mut at = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        at -= 1;
        if number == 0 {
            break;
        }
    }
    text.put_slice(digits.get(at..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_as_they_were_written_however_many_follow() {
        let text = |number: u64| written(|text| put_number(text, number));
        let texts: Vec<_> = (0..20_000).map(|number| (number, text(number))).collect();
        for (number, text) in texts {
            assert_eq!(text, number.to_string());
        }
        assert_eq!(text(u64::MAX), u64::MAX.to_string());
        let long = written(|text| text.put_bytes(b'x', 3 * BLOCK));
        assert_eq!((long.len(), text(7).as_ref()), (3 * BLOCK, b"7".as_slice()));
    }

    #[test]
    fn a_text_may_be_written_within_another() {
        let outer = written(|outer| {
            outer.put_slice(b"a");
            outer.put_slice(&written(|inner| inner.put_slice(b"b")));
        });
        assert_eq!(outer.as_ref(), b"ab");
    }
}
