//! Which attribute names mean something, looked up once for every attribute that passes: one small table, made from the
//! lists in [`names`], indexed by the length and two bytes of the name.

use std::sync::LazyLock;

use rollscope_model::names::{self, reserved};

/// The meaning of a known attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Meaning {
    Run,
    Step,
    Sample,
    Group,
    SampleOfGroup,
    Attempt,
    Phase,
    Request,
    BootstrapRoom,
    Thread,
    Host,
    Pid,
    TpRank,
    DpRank,
    PpRank,
    // From here on: only read from resources.
    Service,
    Project,
    RunName,
    System,
    // From here on: reserved, taken out of the attributes of a span.
    State,
    StartAttrs,
    OriginalTraceId,
    OriginalSpanId,
    OriginalParentSpanId,
}

impl Meaning {
    pub const COUNT: usize = Meaning::OriginalParentSpanId as usize + 1;

    pub fn is_reserved(self) -> bool {
        self as u8 >= Meaning::State as u8
    }
}

struct Entry {
    name: &'static str,
    meaning: Meaning,
    /// Place in its list: the lowest is believed.
    rank: u8,
}

const SLOTS: usize = 128;

pub(super) struct KnownAttributes {
    slots: [Vec<Entry>; SLOTS],
}

fn slot(name: &[u8]) -> usize {
    match name {
        [first, .., last] => (name.len() * 5 + *first as usize * 3 + *last as usize * 11) % SLOTS,
        _ => 0,
    }
}

impl KnownAttributes {
    pub fn get() -> &'static KnownAttributes {
        static KNOWN: LazyLock<KnownAttributes> = LazyLock::new(|| {
            let mut slots = std::array::from_fn(|_| Vec::new());
            for (meaning, list) in lists() {
                for (rank, name) in list.iter().enumerate() {
                    slots[slot(name.as_bytes())].push(Entry { name, meaning, rank: rank as u8 });
                }
            }
            KnownAttributes { slots }
        });
        &KNOWN
    }

    #[inline]
    pub fn find(&self, name: &str) -> Option<(Meaning, u8)> {
        let entries = &self.slots[slot(name.as_bytes())];
        entries.iter().find(|e| e.name == name).map(|e| (e.meaning, e.rank))
    }
}

fn lists() -> [(Meaning, &'static [&'static str]); Meaning::COUNT] {
    [
        (Meaning::Run, names::RUN_ID),
        (Meaning::Step, names::STEP),
        (Meaning::Sample, names::SAMPLE_ID),
        (Meaning::Group, names::GROUP_ID),
        (Meaning::SampleOfGroup, names::SAMPLE_OF_GROUP),
        (Meaning::Attempt, names::ATTEMPT),
        (Meaning::Phase, &[names::PHASE]),
        (Meaning::Request, names::REQUEST_ID),
        (Meaning::BootstrapRoom, &[names::BOOTSTRAP_ROOM]),
        (Meaning::Thread, names::THREAD_LABEL),
        (Meaning::Host, names::HOST),
        (Meaning::Pid, names::PID),
        (Meaning::TpRank, &[names::TP_RANK]),
        (Meaning::DpRank, &[names::DP_RANK]),
        (Meaning::PpRank, &[names::PP_RANK]),
        (Meaning::Service, &[names::SERVICE_NAME]),
        (Meaning::Project, &[names::PROJECT]),
        (Meaning::RunName, &[names::RUN_NAME]),
        (Meaning::System, &[names::SYSTEM]),
        (Meaning::State, &[reserved::STATE]),
        (Meaning::StartAttrs, &[reserved::START_ATTRS]),
        (Meaning::OriginalTraceId, &[reserved::ORIGINAL_TRACE_ID]),
        (Meaning::OriginalSpanId, &[reserved::ORIGINAL_SPAN_ID]),
        (Meaning::OriginalParentSpanId, &[reserved::ORIGINAL_PARENT_SPAN_ID]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_slots_are_short() {
        let known = KnownAttributes::get();
        for (i, (meaning, list)) in lists().into_iter().enumerate() {
            assert_eq!(meaning as usize, i);
            for (rank, name) in list.iter().enumerate() {
                assert_eq!(known.find(name), Some((meaning, rank as u8)), "{name}");
            }
        }
        assert_eq!(known.find(""), None);
        assert_eq!(known.find("rl.stepp"), None);
        assert!(known.slots.iter().all(|s| s.len() <= 3));
    }
}
