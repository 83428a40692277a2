//! A pure model of the three allocators with their repair loops, in virtual time: the same seed gives the same history.

pub mod random;
