//! Compiles one loop twice: for AVX2, used if the processor has it, and for any processor.
//!
//! Both twins are the same Rust code, so they give the same bits; tests compare them. The wide twin
//! gains from the compiler's vectorisation. Where that is not enough, a file has a wide twin
//! written by hand.

/// Declares the function `$name`, which chooses a twin when it is called, and its plain twin
/// `$plain`. Both may have one const parameter, a `usize`, and each of its values gets a loop of
/// its own.
macro_rules! twin {
    ($(#[$attribute:meta])* $visible:vis fn $name:ident, $plain:ident$(<$constant:ident>)?($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        #[inline(always)]
        fn $plain$(<const $constant: usize>)?($($argument: $kind),*) $(-> $result)? $body

        $(#[$attribute])*
        $visible fn $name$(<const $constant: usize>)?($($argument: $kind),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
                fn wide$(<const $constant: usize>)?($($argument: $kind),*) $(-> $result)? {
                    $plain$(::<$constant>)?($($argument),*)
                }
                if $crate::twin::has_avx2() {
                    // SAFETY: the processor has every feature that `wide` is compiled for; asked on
                    // the line above.
                    return unsafe { wide$(::<$constant>)?($($argument),*) };
                }
            }
            $plain$(::<$constant>)?($($argument),*)
        }
    };
}
pub(crate) use twin;

/// Whether the processor has the features that the wide twins are compiled for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("lzcnt")
}
