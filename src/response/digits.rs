//! Numbers as header values, without an allocation up to 9,999.

use bytes::Bytes;
use http::HeaderValue;

/// "0000", "0001", … "9999", one after the other.
static FOUR_DIGITS: [u8; 40_000] = {
    let mut digits = [b'0'; 40_000];
    let mut at = 0;
    while at < digits.len() {
        let mut number = at / 4;
        let mut place = 4;
        while place > 0 {
            place -= 1;
            #[allow(clippy::cast_possible_truncation, clippy::indexing_slicing, reason = "a digit; in a constant")]
            {
                digits[at + place] = b'0' + (number % 10) as u8;
            }
            number /= 10;
        }
        at += 4;
    }
    digits
};

/// Returns `number` in digits.
pub(super) fn value(number: u64) -> HeaderValue {
    let short = short(number).and_then(|digits| HeaderValue::from_maybe_shared(Bytes::from_static(digits)).ok());
    short.unwrap_or_else(|| HeaderValue::from(number))
}

/// Returns a number of up to four digits.
pub(super) fn short(number: u64) -> Option<&'static [u8]> {
    let at = usize::try_from(number).ok()?.checked_mul(4)?;
    let zeros = match number {
        0..=9 => 3,
        10..=99 => 2,
        100..=999 => 1,
        _ => 0,
    };
    FOUR_DIGITS.get(at..)?.get(zeros..4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_every_number_as_it_is() {
        for number in (0..=10_050).chain([99_999, 1 << 40, u64::MAX - 1, u64::MAX]) {
            assert_eq!(value(number), number.to_string().as_str());
        }
    }
}
