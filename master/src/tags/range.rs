//! Tag ranges in the notation of the API: `a-b`.

use crate::problem::Problem;

/// Numbers from `min` to `max`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub min: usize,
    pub max: usize,
}

/// Number of VNIs that the bitmap of a VXLAN pool holds.
const MAX_VXLANS: usize = 16_000;

impl Range {
    pub fn vlans(text: &str) -> Result<Range, Problem> {
        let range = Range::parse(text)?;
        if range.max > 4095 {
            let error = format!("invalid range {text}, vlan values exceed 4095 max allowed");
            return Err(Problem::invalid(error));
        }
        Ok(range)
    }

    pub fn vxlans(text: &str) -> Result<Range, Problem> {
        let range = Range::parse(text)?;
        if range.max > 65535 {
            // The original writes "vlan" here too.
            let error = format!("invalid range {text}, vlan values exceed 65535 max allowed");
            return Err(Problem::invalid(error));
        }
        if range.max - range.min > MAX_VXLANS {
            let error = format!("does not allow vxlan range to exceed {MAX_VXLANS} range {text}");
            return Err(Problem::invalid(error));
        }
        Ok(range)
    }

    fn parse(text: &str) -> Result<Range, Problem> {
        let bad = || Problem::invalid(format!("invalid tags {text}, correct '10-50,70-100'"));
        let (min, max) = text.split_once('-').ok_or_else(bad)?;
        let (min, max) = (min.parse().map_err(|_| bad())?, max.parse().map_err(|_| bad())?);
        if min > max {
            return Err(Problem::invalid(format!("invalid range {text}, min is greater than max")));
        }
        if min < 1 {
            return Err(Problem::invalid(format!("invalid range {text}, values less than 1")));
        }
        Ok(Range { min, max })
    }

    pub fn contains(&self, n: usize) -> bool {
        (self.min..=self.max).contains(&n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_originals_texts() {
        let vlans = |text| Range::vlans(text).unwrap_err().text;
        assert_eq!(vlans("1-5000"), "invalid range 1-5000, vlan values exceed 4095 max allowed");
        assert_eq!(vlans("0-10"), "invalid range 0-10, values less than 1");
        assert_eq!(vlans("100-50"), "invalid range 100-50, min is greater than max");
        let vxlans = |text| Range::vxlans(text).unwrap_err().text;
        assert_eq!(vxlans("1-70000"), "invalid range 1-70000, vlan values exceed 65535 max allowed");
        assert_eq!(vxlans("1-20000"), "does not allow vxlan range to exceed 16000 range 1-20000");
        assert_eq!(Range::vxlans("1-16001"), Ok(Range { min: 1, max: 16001 }));
        assert_eq!(Range::vlans("1-4095"), Ok(Range { min: 1, max: 4095 }));
    }
}
