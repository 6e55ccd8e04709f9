---------------------------- MODULE LedgerSearch ----------------------------
(***************************************************************************)
(* Ledger.tla as a whole system that TLC can search: with few entries, and *)
(* with a budget for everything that may go wrong.                         *)
(*                                                                         *)
(* Fewer states, and what it costs:                                        *)
(*   - what is due is sent before anything else happens. A message may be  *)
(*     late, so only the LAC that it carries could be another one;         *)
(*   - only a bookie that has an entry loses what it has;                  *)
(*   - each message is delivered once. What a second delivery does is seen *)
(*     in recorded runs (LedgerTrace.tla).                                 *)
(***************************************************************************)
EXTENDS Ledger, TLC

CONSTANTS
    Entries,      \* how many entries the owner appends
    Changes,      \* how often slots are replaced
    TimeOuts,     \* how often a fence or a read of a recovery times out
    LostAnswers,  \* how often a client reads before the store has seen its write
    Losses,       \* how often a bookie loses all that it has
    Repairs,      \* how often repair writes another bookie into a fragment
    Closes        \* whether the owner may close

VARIABLES
    gone,         \* messages that were delivered
    left          \* what is left of the budgets

searchVars == <<vars, gone, left>>

-----------------------------------------------------------------------------
(* What is due: the next entry of each slot, and of a recoverer its fences and reads, too. *)
NextDue(p, slot) ==
    LET due == { e \in (p.sent[slot] + 1)..p.lap : Holds(slot, e) }
    IN IF slot \in p.failed \union p.replacing \/ due = {} THEN None ELSE Min(due)

OwnerDue == IF owner.mode = "open" THEN { s \in Slots : NextDue(owner.p, s) # None } ELSE {}
RecDue(r) == IF IsWritingBack(rec[r]) THEN { s \in Slots : NextDue(rec[r].p, s) # None } ELSE {}
IsFenceSent(r, s) ==
    [type |-> "fence", from |-> r, to |-> rec[r].frozen.ens[s], slot |-> s] \in msgs
FencesDue(r) == IF rec[r].phase = "fencing" THEN { s \in Slots : ~IsFenceSent(r, s) } ELSE {}
AsksDue(r) == rec[r].phase = "reading" /\ rec[r].asking

IsDue ==
    \/ OwnerDue # {}
    \/ \E r \in Recoverers : RecDue(r) # {} \/ FencesDue(r) # {} \/ AsksDue(r)

SendOne ==
    IF OwnerDue # {} THEN LET s == Min(OwnerDue) IN OwnerSends(s, NextDue(owner.p, s), NextDue(owner.p, s))
    ELSE LET r == CHOOSE r \in Recoverers : RecDue(r) # {} \/ FencesDue(r) # {} \/ AsksDue(r)
         IN IF FencesDue(r) # {} THEN RecSendsFence(r, Min(FencesDue(r)))
            ELSE IF RecDue(r) # {}
            THEN LET s == Min(RecDue(r)) IN RecSends(r, s, NextDue(rec[r].p, s), NextDue(rec[r].p, s))
            ELSE RecAsks(r)

-----------------------------------------------------------------------------
(* A message that is taken. *)
Takes(m) ==
    CASE m.type = "write" -> m.version = meta.version /\ IsStillThere(m) /\ StoreApplies(m)
      [] m.type \in {"add", "fence", "readask"} -> BookieHandles(m)
      [] m.type = "added" ->
            IF m.to = Owner
            THEN owner.mode = "open" /\ (IF m.status = "ok" THEN OwnerHearsOk(m) ELSE OwnerHearsFence(m))
            ELSE m.to # Repairer /\ RecHearsOk(m.to, m)
      [] m.type = "fenced" -> RecHearsFence(m.to, m)
      [] m.type = "read" -> RecHearsRead(m.to, m)

(* A client reads the metadata after the store has seen its write, or before it, if the answer was lost. *)
Settles(writes) == \A m \in writes : m.version < meta.version

OwnersWrites == { m \in msgs : m.type = "write" /\ m.from = Owner }
RecsWrites(r) == { m \in msgs : m.type = "write" /\ m.from = r }

(* Slots that fail and are replaced, as one step: what failed earlier would not have answered meanwhile. *)
Replacements(p) ==
    { repl \in UNION { [slots -> Bookies] : slots \in SUBSET Slots \ {{}} } :
        /\ Cardinality(DOMAIN repl) <= left.changes
        /\ IsReplacement([p EXCEPT !.failed = @ \union DOMAIN repl], repl, FullPinning) }

OwnerReplaces(repl) ==
    LET p == [owner.p EXCEPT !.failed = @ \union DOMAIN repl]
    IN /\ owner.mode = "open" /\ DOMAIN owner.repl = {}
       /\ owner' = Formed([owner EXCEPT !.p = Strip(p, DOMAIN repl, TRUE), !.repl = repl])
       /\ msgs' = msgs \union WriteOf(owner')
       /\ UNCHANGED <<meta, bookie, rec>>

RecReplaces(r, repl) ==
    LET p == rec[r].p
        stripped == Strip([p EXCEPT !.failed = @ \union DOMAIN repl], DOMAIN repl, FALSE)
    IN /\ IsWritingBack(rec[r]) /\ ~IsDrained(p)
       /\ RecDoes(r, Install(stripped, repl, ChangedFragments(stripped, repl, stripped.frags)))

Deliver == \E m \in msgs \ gone : Takes(m) /\ gone' = gone \union {m} /\ UNCHANGED left

Quiet == UNCHANGED <<gone, left>>

Act ==
    \/ owner.mode = "open" /\ owner.p.lap < Entries - 1 /\ OwnerPushes(1) /\ Quiet
    \/ Closes /\ OwnerCloses /\ Quiet
    \/ owner.writing /\ Settles(OwnersWrites) /\ OwnerReads /\ Quiet
    \/ /\ owner.writing /\ ~Settles(OwnersWrites) /\ left.lost > 0 /\ OwnerReads
       /\ left' = [left EXCEPT !.lost = @ - 1] /\ UNCHANGED gone
    \/ /\ left.changes > 0 /\ owner.mode = "open" /\ DOMAIN owner.repl = {}
       /\ \E repl \in Replacements(owner.p) :
            /\ OwnerReplaces(repl)
            /\ left' = [left EXCEPT !.changes = @ - Cardinality(DOMAIN repl)] /\ UNCHANGED gone
    \/ \E n \in Bookies :
        \/ /\ left.losses > 0 /\ bookie[n].durable # {} /\ BookieLosesAll(n)
           /\ left' = [left EXCEPT !.losses = @ - 1] /\ UNCHANGED gone
        \/ BookieLeavesLimbo(n) /\ Quiet
        \/ \E e \in 0..(Entries - 1) : BookieCopiesBack(n, e) /\ Quiet
    \/ /\ left.repairs > 0
       /\ \E new \in Bookies :
            \/ \E e \in 0..(Entries - 1) : RepairCopies(new, {e}, SurelyCommitted) /\ Quiet
            \/ \E i \in 1..Len(meta.frags), slot \in Slots :
                /\ RepairWrites(i, slot, new)
                /\ left' = [left EXCEPT !.repairs = @ - 1] /\ UNCHANGED gone
    \/ \E r \in Recoverers :
        \/ meta.state # "CLOSED" /\ RecStarts(r) /\ Quiet
        \/ rec[r].writing /\ Settles(RecsWrites(r)) /\ RecReads(r) /\ Quiet
        \/ /\ rec[r].writing /\ ~Settles(RecsWrites(r)) /\ left.lost > 0 /\ RecReads(r)
           /\ left' = [left EXCEPT !.lost = @ - 1] /\ UNCHANGED gone
        \/ /\ left.timeouts > 0
           /\ \/ \E s \in Slots : RecFenceFails(r, s)
              \/ \E s \in Slots : RecReadFails(r, s, rec[r].next)
           /\ left' = [left EXCEPT !.timeouts = @ - 1] /\ UNCHANGED gone
        \/ /\ left.changes > 0 /\ IsWritingBack(rec[r])
           /\ \E repl \in Replacements(rec[r].p) :
                /\ RecReplaces(r, repl)
                /\ left' = [left EXCEPT !.changes = @ - Cardinality(DOMAIN repl)] /\ UNCHANGED gone

SearchInit ==
    /\ Init
    /\ gone = {}
    /\ left = [changes |-> Changes, timeouts |-> TimeOuts, lost |-> LostAnswers, losses |-> Losses,
              repairs |-> Repairs]

SearchNext == IF IsDue THEN SendOne /\ Quiet ELSE Deliver \/ Act

SearchSpec == SearchInit /\ [][SearchNext]_searchVars

First == [s \in Slots |-> <<"b0", "b1", "b2", "b3">>[s]]

(* A search that does not reach the end of a recovery shows little. *)
NeverClosedByRecovery == ~(\E r \in Recoverers : rec[r].phase = "done" /\ rec[r].end # None)

(* Nor one in which no bookie copies back what it lost, and leaves limbo. *)
NeverHealed ==
    ~(left.losses < Losses /\ meta.state = "CLOSED" /\ meta.last # NoEntry /\ \A n \in Bookies : ~bookie[n].limbo)

(* Nor one in which no bookie is named by a repair. *)
NeverRepaired == ~(\E m \in gone : m.type = "write" /\ m.from = Repairer)

(* Rules that are missing: put in the place of the operators of these names, each must lose an entry. *)
OneDenialIsEnough == 1
NothingIsRefused(b, m) == FALSE
NothingIsWaitedFor(x) == IF x.phase = "closing" THEN [x EXCEPT !.writing = TRUE] ELSE x
OnceItIsClosed(n) == meta.state = "CLOSED"
AnyTime(n) == TRUE
WithoutCopies(i, slot, new) == TRUE
OfItsWriterToo(i) == TRUE
WhoeverBooted(m) == TRUE
=============================================================================
