----------------------------- MODULE LedgerTrace -----------------------------
(***************************************************************************)
(* Whether recorded runs of the program are behaviours of Ledger.tla; see  *)
(* Following.tla.                                                          *)
(***************************************************************************)
EXTENDS Ledger, Following

traceVars == <<vars, run, at, verdict>>

-----------------------------------------------------------------------------
(* What is compared with the state of the program. *)

PendingView(p) ==
    [ens |-> p.ens, conf |-> p.conf, lap |-> p.lap, lac |-> p.lac, lafr |-> p.lafr, failed |-> p.failed,
     replacing |-> p.replacing, frags |-> p.frags]

OwnerView(o) == [mode |-> o.mode, end |-> o.end, fate |-> o.fate, writing |-> o.writing, p |-> PendingView(o.p)]

RecView(x) ==
    [phase |-> x.phase, writing |-> x.writing,
     fenced |-> IF x.phase = "fencing" THEN x.fenced ELSE {},
     start |-> IF x.phase \in {"fencing", "reading", "closing"} THEN x.start ELSE None,
     lac |-> IF x.phase \in {"fencing", "reading", "closing"} THEN x.lac ELSE None,
     next |-> IF x.phase = "reading" THEN x.next ELSE None,
     end |-> IF x.phase = "closing" THEN x.end ELSE IF x.phase = "done" THEN x.known.last ELSE None,
     p |-> IF IsWritingBack(x) THEN <<PendingView(x.p)>> ELSE <<>>]

BookieView(b) ==
    [entries |-> b.entries, durable |-> b.durable, fenced |-> b.fenced, fencedDurable |-> b.fencedDurable,
     lac |-> b.lac, lafr |-> b.lafr, limbo |-> b.limbo]

-----------------------------------------------------------------------------
(* A repair may form its write from metadata that are not the newest any more. Such a write is never applied. *)
RepairWritesOnce(m) ==
    \/ \E i \in 1..Len(meta.frags), slot \in Slots, new \in Bookies : RepairWrites(i, slot, new)
    \/ m.version < meta.version /\ msgs' = msgs \union {m} /\ UNCHANGED <<meta, bookie, owner, rec>>

Does(s) ==
    CASE s.ev = "store applies"      -> StoreApplies(s.m)
      [] s.ev = "bookie handles"     -> BookieHandles(s.m)
      [] s.ev = "bookie is short"    -> BookieAnswersShort(s.m, s.through)
      [] s.ev = "bookie syncs"       -> BookieSyncs(s.b)
      [] s.ev = "bookie crashes"     -> BookieCrashes(s.b)
      [] s.ev = "bookie loses all"   -> BookieLosesAll(s.b)
      [] s.ev = "bookie copies back" -> BookieCopiesBack(s.b, s.e)
      [] s.ev = "bookie leaves limbo" -> BookieLeavesLimbo(s.b)
      [] s.ev = "owner pushes"       -> OwnerPushes(s.count)
      [] s.ev = "owner sends"        -> OwnerSends(s.slot, s.first, s.last)
      [] s.ev = "owner publishes"    -> OwnerPublishes(s.slot)
      [] s.ev = "owner hears ok"     -> OwnerHearsOk(s.m)
      [] s.ev = "owner hears fence"  -> OwnerHearsFence(s.m)
      [] s.ev = "owner fails"        -> OwnerFails(s.slot)
      [] s.ev = "owner connects"     -> OwnerConnects(s.slot)
      [] s.ev = "owner changes"      -> OwnerChanges(s.repl)
      [] s.ev = "owner closes"       -> OwnerCloses
      [] s.ev = "owner gives up"     -> OwnerGivesUp
      [] s.ev = "owner reads"        -> OwnerReads
      [] s.ev = "starts"             -> RecStarts(s.c)
      [] s.ev = "sends fence"        -> RecSendsFence(s.c, s.slot)
      [] s.ev = "hears fence"        -> RecHearsFence(s.c, s.m)
      [] s.ev = "fence fails"        -> RecFenceFails(s.c, s.slot)
      [] s.ev = "asks"               -> RecAsks(s.c)
      [] s.ev = "hears read"         -> RecHearsRead(s.c, s.m)
      [] s.ev = "read fails"         -> RecReadFails(s.c, s.slot, s.first)
      [] s.ev = "sends"              -> RecSends(s.c, s.slot, s.first, s.last)
      [] s.ev = "hears ok"           -> RecHearsOk(s.c, s.m)
      [] s.ev = "fails"              -> RecFails(s.c, s.slot)
      [] s.ev = "connects"           -> RecConnects(s.c, s.slot)
      [] s.ev = "changes"            -> RecChanges(s.c, s.repl)
      [] s.ev = "reads"              -> RecReads(s.c)
      [] s.ev = "repair copies"      -> RepairCopies(s.b, s.es, s.lac)
      [] s.ev = "repair writes"      -> RepairWritesOnce(s.m)

(* Exactly these messages are sent. One that was sent before may be sent again. *)
Sends(out) == out \subseteq msgs' /\ msgs' \ msgs \subseteq out

Sees(what) ==
    CASE what.kind = "meta"   -> meta' = what.is
      [] what.kind = "owner"  -> OwnerView(owner') = what.is
      [] what.kind = "rec"    -> RecView(rec'[what.name]) = what.is
      [] what.kind = "bookie" -> BookieView(bookie'[what.name]) = what.is

SeesAll(see) == \A i \in 1..Len(see) : Sees(see[i])

Step ==
    /\ Advances
    /\ LET s == Steps[at] IN Does(s) /\ Sends(s.out) /\ SeesAll(s.see)

Accept == IsAccepted /\ UNCHANGED vars

(* Why a step is refused: what the module says instead, as far as it allows the action at all. *)
Why(s) ==
    IF ~ENABLED Does(s) THEN "not allowed"
    ELSE IF ~ENABLED (Does(s) /\ Sends(s.out)) THEN "other messages"
    ELSE "another state"

Refuse == Explains /\ IsOnItsWay /\ ~ENABLED Step /\ IsRefused(Why(Steps[at])) /\ UNCHANGED vars

TraceInit == Init /\ AtBeginning

TraceNext == Step \/ Accept \/ Refuse

TraceSpec == TraceInit /\ [][TraceNext]_traceVars
=============================================================================
