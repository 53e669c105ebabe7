//! One sparse scenario per rule of `lead`; `tools/mutants.toml` breaks each.

use std::sync::Arc;

use crate::lead::{Claim, Lead, Sleep, Waiter, Wakes};

type Threads = Lead<&'static str>;

fn enter(lead: &Threads, awaited: &'static str) -> Arc<Waiter<&'static str>> {
    lead.enter(awaited).expect("nothing has ended")
}

fn woken(wakes: &Wakes<&'static str>) -> Vec<&'static str> {
    wakes.waiters.iter().map(|one| one.awaited).collect()
}

/// Lead and be about to sleep.
fn asleep(lead: &Threads, awaited: &'static str) -> Arc<Waiter<&'static str>> {
    let waiter = enter(lead, awaited);
    assert_eq!(lead.claim(&waiter), Claim::Leads);
    assert_eq!(lead.may_sleep(&waiter, 0), Sleep::Until(i64::MAX));
    waiter
}

#[test]
fn one_leads_and_names_a_successor_when_it_leaves() {
    let lead = Threads::default();
    let leader = asleep(&lead, "first");
    let follower = enter(&lead, "second");
    assert_eq!(lead.claim(&follower), Claim::Follows);
    assert_eq!(lead.sleepers(), 2);
    lead.wake();
    let (wakes, tells) = lead.leave(&leader);
    assert_eq!((woken(&wakes), tells), (vec!["second"], false));
    assert!(follower.is_notified());
    assert_eq!(lead.claim(&follower), Claim::Leads);
}

#[test]
fn who_leaves_while_none_leads_names_one_too() {
    let lead = Threads::default();
    let leader = asleep(&lead, "first");
    let (second, third) = (enter(&lead, "second"), enter(&lead, "third"));
    lead.leave(&leader); // names the second, which was about to leave
    let (wakes, _) = lead.leave(&second);
    assert_eq!(woken(&wakes), ["third"]);
    assert_eq!(lead.claim(&third), Claim::Leads);
}

#[test]
fn what_is_notified_after_its_look_does_not_sleep() {
    let lead = Threads::default();
    let leader = enter(&lead, "first");
    assert_eq!(lead.claim(&leader), Claim::Leads);
    let wakes = lead.notify_ready(None, |_| true);
    assert!(!wakes.rings && wakes.waiters.is_empty(), "it is awake");
    assert_eq!(lead.may_sleep(&leader, 0), Sleep::No);
    leader.clear();
    assert_eq!(lead.may_sleep(&leader, 0), Sleep::Until(i64::MAX));
}

#[test]
fn a_sleeping_leader_is_rung_and_a_follower_is_woken() {
    let lead = Threads::default();
    let leader = asleep(&lead, "first");
    let follower = enter(&lead, "second");
    let wakes = lead.notify_ready(None, |awaited| *awaited == "second");
    assert_eq!((wakes.rings, woken(&wakes)), (false, vec!["second"]));
    let wakes = lead.notify_ready(Some(&follower), |_| true);
    assert!(wakes.rings && wakes.waiters.is_empty());
    assert!(leader.is_notified());
}

#[test]
fn the_loop_is_called_before_a_sleep_and_in_it() {
    let lead = Threads::default();
    let leader = enter(&lead, "first");
    lead.claim(&leader);
    assert!(!lead.note_due(None).rings);
    assert_eq!(lead.may_sleep(&leader, 0), Sleep::Due);
    assert_eq!(lead.may_sleep(&leader, 0), Sleep::Until(i64::MAX));
    assert!(lead.note_due(None).rings);
    lead.wake();
    assert_eq!(lead.may_sleep(&leader, 0), Sleep::Due);
}

#[test]
fn a_timer_shortens_a_sleep_and_a_later_one_does_not() {
    let lead = Threads::default();
    let leader = enter(&lead, "first");
    lead.claim(&leader);
    lead.plan(500);
    assert_eq!(lead.may_sleep(&leader, 0), Sleep::Until(500));
    assert!(!lead.note_due(Some(600)).rings);
    assert!(lead.note_due(Some(400)).rings);
    lead.wake();
    assert_eq!(lead.may_sleep(&leader, 100), Sleep::Until(400));
    lead.wake();
    assert_eq!(lead.may_sleep(&leader, 400), Sleep::Due);
    assert_eq!(lead.may_sleep(&leader, 400), Sleep::Until(i64::MAX), "once");
}

#[test]
fn the_thread_leads_while_none_waits_and_hears_when_the_last_one_left() {
    let lead = Threads::default();
    assert!(lead.lead_in_thread());
    let waiter = enter(&lead, "first");
    assert_eq!(lead.claim(&waiter), Claim::Thread);
    assert_eq!(woken(&lead.take_from_thread()), ["first"]);
    assert!(!lead.lead_in_thread(), "one is about to lead");
    assert_eq!(lead.claim(&waiter), Claim::Leads);
    assert!(!lead.lead_in_thread(), "a thread waits");
    let second = enter(&lead, "second");
    assert!(!lead.leave(&waiter).1, "another one waits");
    assert!(lead.leave(&second).1);
    assert!(!lead.want(false));
    assert!(lead.want(true));
    let third = enter(&lead, "third");
    assert!(lead.leave(&third).1);
}

#[test]
fn an_end_wakes_all_and_lets_none_in() {
    let lead = Threads::default();
    let leader = asleep(&lead, "first");
    let follower = enter(&lead, "second");
    let wakes = lead.end();
    assert_eq!((wakes.rings, woken(&wakes)), (true, vec!["second"]));
    assert_eq!(lead.claim(&follower), Claim::Ended);
    assert_eq!(lead.may_sleep(&leader, 0), Sleep::No);
    assert!(lead.enter("third").is_none());
    lead.leave(&leader);
    assert!(lead.leave(&follower).1, "the last one tells");
}

#[test]
fn an_armed_doorbell_that_another_thread_heard_is_armed_anew() {
    let lead = Threads::default();
    assert!(!lead.rearm().rings);
    let _leader = asleep(&lead, "first");
    assert!(lead.rearm().rings);
}
