//! Moments and lists in words.

use crate::words::time;

use super::scene::SECOND;

const DAY_S: i64 = 86_400;

/// `14:22:51`, or with its date where that is not the day of `at`. UTC.
pub fn moment(ns: i64, at: i64) -> String {
    let seconds = ns.div_euclid(SECOND);
    let (day, of_day) = (seconds.div_euclid(DAY_S), seconds.rem_euclid(DAY_S));
    let clock = format!("{:02}:{:02}:{:02}", of_day / 3600, of_day % 3600 / 60, of_day % 60);
    if day == at.div_euclid(SECOND).div_euclid(DAY_S) {
        return clock;
    }
    let (year, month, of_month) = date(day);
    format!("{year:04}-{month:02}-{of_month:02} {clock}")
}

/// Year, month and day of a day since 1970-01-01: Howard Hinnant's `civil_from_days`.
fn date(day: i64) -> (i64, i64, i64) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, of_year - (153 * from_march + 2) / 5 + 1)
}

/// `a, b and c`, or `a, b, c and 5 others`.
pub fn list(names: &[String], most: usize) -> String {
    let (shown, rest) = names.split_at(names.len().min(most));
    match (shown, rest.len()) {
        ([], _) => String::new(),
        ([one], 0) => one.clone(),
        ([first @ .., last], 0) => format!("{} and {last}", first.join(", ")),
        (shown, 1) => format!("{} and 1 other", shown.join(", ")),
        (shown, rest) => format!("{} and {rest} others", shown.join(", ")),
    }
}

/// `for 12 min (usually 2.1 s, at most 40 s)`.
pub fn lasted(age: f64, usual: Option<(f64, f64)>) -> String {
    match usual {
        Some((median, longest)) => {
            format!("for {} (usually {}, at most {} before)", time(age), time(median), time(longest))
        }
        None => format!("for {}", time(age)),
    }
}

/// The first letter as a capital, unless the first word is a name, such as that of a host.
pub fn capital(text: &str) -> String {
    let word = text.split(' ').next().unwrap_or_default();
    if word.contains(|c: char| !c.is_alphabetic()) {
        return text.to_string();
    }
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_name_their_day_where_it_is_another() {
        let at = 1_790_000_000 * SECOND;
        assert_eq!(moment(at, at), "14:13:20");
        assert_eq!(moment(at - DAY_S * SECOND, at), "2026-09-20 14:13:20");
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
    }

    #[test]
    fn names_stay_as_they_are() {
        assert_eq!(capital("rank 3 is there"), "Rank 3 is there");
        assert_eq!(capital("vm:17 is gone"), "vm:17 is gone");
        assert_eq!(capital(""), "");
    }

    #[test]
    fn lists_are_short() {
        let names = |n: usize| (0..n).map(|at| at.to_string()).collect::<Vec<_>>();
        assert_eq!(list(&names(1), 3), "0");
        assert_eq!(list(&names(3), 3), "0, 1 and 2");
        assert_eq!(list(&names(4), 3), "0, 1, 2 and 1 other");
        assert_eq!(list(&names(9), 3), "0, 1, 2 and 6 others");
    }
}
