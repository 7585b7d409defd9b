//! An allocator that counts what each thread asks for: how often, and how many bytes are still held.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator with two counters that no other thread touches, so that counting costs about a nanosecond and
/// the threads of a measurement do not wait for each other.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(asked: u64, bytes: i64) {
    ASKED.with(|count| count.set(count.get() + asked));
    HELD.with(|held| held.set(held.get() + bytes));
}

// SAFETY: every request is passed on unchanged, so the system allocator's own contract holds; the counters are plain
// numbers without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Returns how often this thread has asked for memory so far.
pub fn asked() -> u64 {
    ASKED.with(Cell::get)
}

/// Returns how many bytes this thread has asked for and not given back: what was requested, without what the system's
/// allocator adds to it.
pub fn held() -> i64 {
    HELD.with(Cell::get)
}

/// Returns the process's resident memory in bytes.
pub fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("resident memory is read from /proc/self/statm");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm has a second number");
    pages * 4_096
}
