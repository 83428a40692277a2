//! The allocator bitmap: the set of granted addresses of one service range as Kubernetes stores it in etcd.
//!
//! `RangeAllocation.data` is Go's `big.Int.Bytes()`: big-endian, without leading zero bytes, empty when nothing is
//! granted. Bit 0 is base+1, the first usable address (`ipallocator/bitmap.go`).

use crate::net::{ServiceRange, from_bits, to_bits};
use std::net::IpAddr;

/// Which addresses of a range are marked as granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationBitmap {
    range: ServiceRange,
    /// Bit `i` is word `i / 64`, mask `1 << (i % 64)`; no trailing zero words.
    words: Vec<u64>,
}

impl AllocationBitmap {
    /// A bitmap without a bit set.
    pub fn empty(range: ServiceRange) -> Self {
        AllocationBitmap { range, words: Vec::new() }
    }

    /// Reads `RangeAllocation.data`.
    ///
    /// # Errors
    /// A bit beyond the addresses that the bitmap of this range can hold. Leading zero bytes are accepted: they are not
    /// what Go writes, but they mean the same number.
    pub fn decode(range: ServiceRange, data: &[u8]) -> Result<Self, BitmapError> {
        let significant = &data[data.iter().take_while(|byte| **byte == 0).count()..];
        let capacity = range.usable_in_bitmap().len();
        let top_bit = match significant.first() {
            None => return Ok(AllocationBitmap::empty(range)),
            Some(byte) => (significant.len() as u128) * 8 - 1 - u128::from(byte.leading_zeros()),
        };
        if top_bit >= capacity {
            return Err(BitmapError::BitOutOfRange { range, bit: top_bit, capacity });
        }
        let words = significant
            .rchunks(8)
            .map(|chunk| chunk.iter().fold(0u64, |word, byte| (word << 8) | u64::from(*byte)))
            .collect();
        Ok(AllocationBitmap { range, words })
    }

    /// The bytes that Go would store.
    pub fn encode(&self) -> Vec<u8> {
        let bytes: Vec<u8> = self.words.iter().rev().flat_map(|word| word.to_be_bytes()).collect();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes[zeros..].to_vec()
    }

    /// The range the bits belong to.
    pub fn range(&self) -> ServiceRange {
        self.range
    }

    /// Whether the address is marked as granted; false outside the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.offset(ip).is_some_and(|(word, mask)| self.words.get(word).is_some_and(|it| it & mask != 0))
    }

    /// Marks an address as granted; true if it was not.
    ///
    /// # Errors
    /// The bitmap of this range has no bit for the address.
    pub fn insert(&mut self, ip: IpAddr) -> Result<bool, BitmapError> {
        let (word, mask) = self.offset(ip).ok_or(BitmapError::NoBit { range: self.range, ip })?;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let fresh = self.words[word] & mask == 0;
        self.words[word] |= mask;
        Ok(fresh)
    }

    /// Marks an address as free; true if it was granted.
    pub fn remove(&mut self, ip: IpAddr) -> bool {
        let was_set = self.contains(ip);
        if let Some((word, mask)) = self.offset(ip).filter(|_| was_set) {
            self.words[word] &= !mask;
            while self.words.last() == Some(&0) {
                self.words.pop();
            }
        }
        was_set
    }

    /// How many addresses are marked as granted.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no address is marked as granted.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The addresses marked as granted, ascending.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let first = to_bits(self.range.usable().first);
        let ipv4 = self.range.is_ipv4();
        self.words.iter().enumerate().flat_map(move |(index, word)| {
            let bits = (0..64u32).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| from_bits(first + index as u128 * 64 + u128::from(bit), ipv4))
        })
    }

    fn offset(&self, ip: IpAddr) -> Option<(usize, u64)> {
        let usable = self.range.usable_in_bitmap();
        let offset = usable.contains(ip).then(|| to_bits(ip) - to_bits(usable.first))?;
        Some((usize::try_from(offset / 64).ok()?, 1 << (offset % 64)))
    }
}

/// Data that is not a bitmap of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BitmapError {
    /// A bit is set for an address the range does not have.
    #[error("bit {bit} is set, but the bitmap of {range} has {capacity} bits")]
    BitOutOfRange {
        /// The range.
        range: ServiceRange,
        /// The highest bit set.
        bit: u128,
        /// How many bits the range has.
        capacity: u128,
    },
    /// An address without a bit.
    #[error("{ip} has no bit in the bitmap of {range}")]
    NoBit {
        /// The range.
        range: ServiceRange,
        /// The address.
        ip: IpAddr,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn range(text: &str) -> ServiceRange {
        ServiceRange::new(text.parse().unwrap()).unwrap()
    }

    #[test]
    fn bit_zero_is_the_first_usable_address_and_bytes_are_big_endian_without_leading_zeros() {
        let mut bitmap = AllocationBitmap::empty(range("10.0.0.0/24"));
        assert_eq!(bitmap.encode(), Vec::<u8>::new());
        bitmap.insert("10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(bitmap.encode(), [0b1]);
        bitmap.insert("10.0.0.10".parse().unwrap()).unwrap();
        assert_eq!(bitmap.encode(), [0b10, 0b1]);
        assert!(bitmap.remove("10.0.0.10".parse().unwrap()));
        assert_eq!(bitmap.encode(), [0b1]);
    }

    #[test]
    fn a_bit_outside_the_range_is_an_error() {
        let error = AllocationBitmap::decode(range("10.0.0.0/29"), &[0b100_0000]).unwrap_err();
        assert_eq!(error.to_string(), "bit 6 is set, but the bitmap of 10.0.0.0/29 has 6 bits");
        let mut bitmap = AllocationBitmap::empty(range("2001:db8::/108"));
        assert!(bitmap.insert("2001:db8::1:0".parse().unwrap()).is_err());
        assert!(bitmap.insert("10.0.0.1".parse().unwrap()).is_err());
    }

    const RANGES: [&str; 5] = ["10.0.0.0/29", "10.0.0.0/24", "10.8.0.0/16", "2001:db8::/120", "2001:db8::/108"];

    proptest! {
        #[test]
        fn a_set_of_addresses_survives_encoding(which in 0usize..5, offsets in proptest::collection::btree_set(0u32..65_534, 0..200)) {
            let range = range(RANGES[which]);
            let usable = range.usable_in_bitmap();
            let wanted: BTreeSet<IpAddr> = offsets.iter()
                .map(|offset| from_bits(to_bits(usable.first) + u128::from(*offset) % usable.len(), range.is_ipv4()))
                .collect();
            let mut bitmap = AllocationBitmap::empty(range);
            for ip in &wanted {
                prop_assert!(bitmap.insert(*ip).unwrap());
            }
            let again = AllocationBitmap::decode(range, &bitmap.encode()).unwrap();
            prop_assert_eq!(&again, &bitmap);
            prop_assert_eq!(again.len(), wanted.len());
            prop_assert_eq!(again.addresses().collect::<BTreeSet<_>>(), wanted);
        }

        #[test]
        fn any_bytes_decode_to_the_same_number_or_an_error(which in 0usize..5, data: Vec<u8>) {
            if let Ok(bitmap) = AllocationBitmap::decode(range(RANGES[which]), &data) {
                let zeros = data.iter().take_while(|byte| **byte == 0).count();
                prop_assert_eq!(bitmap.encode(), &data[zeros..]);
            }
        }

        #[test]
        fn removing_what_was_inserted_gives_the_bitmap_before(offsets in proptest::collection::vec(0u32..254, 1..50)) {
            let range = range("10.0.0.0/24");
            let mut bitmap = AllocationBitmap::empty(range);
            for offset in &offsets {
                let ip = from_bits(to_bits(range.usable().first) + u128::from(*offset), true);
                let before = bitmap.clone();
                if bitmap.insert(ip).unwrap() {
                    let mut undone = bitmap.clone();
                    prop_assert!(undone.remove(ip));
                    prop_assert_eq!(undone, before);
                }
            }
        }
    }
}
