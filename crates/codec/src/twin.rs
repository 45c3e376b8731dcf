//! One source, two machines: a loop compiled for AVX2 where the processor has it, and for any
//! processor otherwise.
//!
//! Both twins are the same Rust, so they give the same bits; the comparing tests hold the compiler
//! to that. What the wide one gains is the compiler's own vectors. Where that is not enough, a file
//! writes its wide twin out by hand.

/// Declares the function `$name`, which picks a twin when it is called, and its plain twin
/// `$plain`. Both may have one constant, a `usize`, for which each value gets a loop of its own.
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

/// Whether the processor has what the wide twins are compiled for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("lzcnt")
}
