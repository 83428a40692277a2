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

    /// How many addresses the bitmap of each of [`RANGES`] has; by hand.
    const CAPACITIES: [usize; 5] = [6, 254, 65_534, 255, 65_535];

    /// The number with these bits, big-endian, behind some zero bytes.
    fn bytes_of(bits: &BTreeSet<usize>, zeros: usize) -> Vec<u8> {
        let mut bytes = vec![0; bits.last().map_or(0, |top| top / 8 + 1)];
        bits.iter().for_each(|bit| bytes[bit / 8] |= 1 << (bit % 8));
        bytes.resize(bytes.len() + zeros, 0);
        bytes.reverse();
        bytes
    }

    /// The address of a bit: bit 0 is base+1.
    fn address(range: ServiceRange, bit: usize) -> IpAddr {
        from_bits(to_bits(range.network()) + 1 + bit as u128, range.is_ipv4())
    }

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
        fn bits_up_to_the_last_address_decode_and_one_more_does_not(
            which in 0usize..5, bits in proptest::collection::btree_set(0usize..70_000, 0..200),
            top: bool, beyond in prop_oneof![Just(0), 0usize..9, 0usize..70_000], zeros in 0usize..9,
        ) {
            let (range, capacity) = (range(RANGES[which]), CAPACITIES[which]);
            let mut bits: BTreeSet<usize> = bits.iter().map(|bit| bit % capacity).collect();
            if top {
                bits.insert(capacity - 1);
            }
            let bitmap = AllocationBitmap::decode(range, &bytes_of(&bits, zeros)).unwrap();
            prop_assert_eq!(&bitmap.encode(), &bytes_of(&bits, 0));
            prop_assert_eq!((bitmap.len(), bitmap.is_empty()), (bits.len(), bits.is_empty()));
            let addresses: Vec<IpAddr> = bits.iter().map(|bit| address(range, *bit)).collect();
            prop_assert_eq!(bitmap.addresses().collect::<Vec<_>>(), addresses);
            for bit in [0, 1, capacity / 2, capacity - 2, capacity - 1, capacity] {
                prop_assert_eq!(bitmap.contains(address(range, bit)), bits.contains(&bit), "bit {}", bit);
            }

            let (bit, capacity) = ((capacity + beyond) as u128, capacity as u128);
            bits.insert(bit as usize);
            let error = AllocationBitmap::decode(range, &bytes_of(&bits, zeros)).unwrap_err();
            prop_assert_eq!(error, BitmapError::BitOutOfRange { range, bit, capacity });
        }

        #[test]
        fn any_bytes_decode_to_their_bits_or_name_the_highest(which in 0usize..5, data in proptest::collection::vec(any::<u8>(), 0..40)) {
            let (range, capacity) = (range(RANGES[which]), CAPACITIES[which]);
            // One bit more than a byte boundary is where mistakes are: cut to the length of the range, and its spare bits.
            let data = &data[data.len().saturating_sub(capacity.div_ceil(8))..];
            let bit_of = |index: usize| data[data.len() - 1 - index / 8] >> (index % 8) & 1 == 1;
            let bits: Vec<usize> = (0..data.len() * 8).filter(|index| bit_of(*index)).collect();
            match (AllocationBitmap::decode(range, data), bits.last().copied().filter(|bit| *bit >= capacity)) {
                (Ok(bitmap), None) => {
                    let addresses: Vec<IpAddr> = bits.iter().map(|bit| address(range, *bit)).collect();
                    prop_assert_eq!(bitmap.addresses().collect::<Vec<_>>(), addresses);
                }
                (result, highest) => {
                    let (bit, capacity) = (highest.map(|bit| bit as u128), capacity as u128);
                    prop_assert_eq!(result.err(), bit.map(|bit| BitmapError::BitOutOfRange { range, bit, capacity }));
                    prop_assert!(bit.is_some());
                }
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
