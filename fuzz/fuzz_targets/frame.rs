//! Decodes any bytes as frames. Each is refused, or is a frame that encodes to exactly the same
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Some((frame, taken)) = inputs::cut(rest) {
        let Ok(frame) = frame else { return };
        assert_eq!(inputs::bytes_of(&frame), rest[..taken], "{frame:?} has two encodings");
        rest = &rest[taken..];
    }
});
