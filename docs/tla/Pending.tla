------------------------------ MODULE Pending ------------------------------
(***************************************************************************)
(* Quorums, and the pending adds of one client: protocol A.0, A.1 "Pending-*)
(* add-op queue rules" and "Ensemble change", A.4.                         *)
(*                                                                         *)
(* A writer and a recoverer share this part. Everything here is a pure     *)
(* operator on records; Ledger.tla makes steps of them.                    *)
(*                                                                         *)
(* Entries count from 0, and -1 means "no entry". Slots count from 1 here, *)
(* because sequences of TLA+ do. An ensemble is a sequence of E bookies.   *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Bookies,      \* the names of all bookies
    E, WQ, AQ,    \* ensemble, write quorum, ack quorum: E >= WQ >= AQ >= 1
    Guaranteed,   \* whether the ledger has a guaranteed write quorum (A.4)
    FullPinning   \* A.4 rule 3: whether the owner pins by the published rule; FALSE: by the relaxed one

ASSUME E >= WQ /\ WQ >= AQ /\ AQ >= 1

NoEntry == -1
None == -2        \* no number at all

Slots == 1..E
Stride == IF E > WQ THEN E ELSE 1   \* entries with equal e % Stride share a write set

Max(S) == CHOOSE x \in S : \A y \in S : x >= y
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Max2(a, b) == IF a >= b THEN a ELSE b
LastOf(seq) == seq[Len(seq)]

(* A.0: the write set of an entry. *)
WriteSet(e) == { ((e + i) % E) + 1 : i \in 0..(WQ - 1) }
Holds(slot, e) == slot \in WriteSet(e)

(* A.0, negative quorum: so many bookies of one write set that lack an entry prove that it was never
   acknowledged. *)
NegativeQuorum == WQ - AQ + 1

(* A.0, coverage: no write set has an ack quorum outside of these slots (T26). *)
Covers(slots) == \A e \in 0..(E - 1) : Cardinality(WriteSet(e) \ slots) < AQ

(***************************************************************************)
(* Pending adds.                                                           *)
(*                                                                         *)
(*   ens        the bookies by slot                                        *)
(*   tenure     by slot a number that no other tenure of any slot has      *)
(*   conf       by slot the entries above settled that it confirmed        *)
(*   sent       by slot: every entry up to this one went to its bookie     *)
(*   failed     slots that failed                                          *)
(*   replacing  slots whose change is under way: nothing of them counts    *)
(*   carried    by slot: its replacement must get all above this entry,    *)
(*              also what has settled since (queue rule 3); None if nothing*)
(*              is carried for it                                          *)
(*   lap, lac, lafr   last add pushed, confirmed, fully replicated         *)
(*   frags      the fragments as this client knows them                    *)
(***************************************************************************)
NewPending(frags, base) ==
    [ens       |-> LastOf(frags).ens,
     tenure    |-> [s \in Slots |-> s - 1],
     conf      |-> [s \in Slots |-> {}],
     sent      |-> [s \in Slots |-> base],
     failed    |-> {},
     replacing |-> {},
     carried   |-> [s \in Slots |-> None],
     lap       |-> base,
     lac       |-> base,
     lafr      |-> base,
     frags     |-> frags]

(* What the client is done with: the LAFR in guaranteed mode, the LAC otherwise. *)
Settled(p) == IF Guaranteed THEN p.lafr ELSE p.lac
IsDrained(p) == Settled(p) = p.lap

SlotOf(p, bookie) == CHOOSE s \in Slots : p.ens[s] = bookie
IsMember(p, bookie) == \E s \in Slots : p.ens[s] = bookie

(* Queue rule 4: an answer counts for the tenure alone in which the add was sent. *)
IsCurrent(p, msg) == IsMember(p, msg.bookie) /\ p.tenure[SlotOf(p, msg.bookie)] = msg.tenure

Confirmers(p, e, without) ==
    { s \in WriteSet(e) \ (p.replacing \union without) : e \in p.conf[s] }

(* The end of the unbroken run of entries after base that a quorum of their write sets confirmed. *)
Reach(p, base, quorum, without) ==
    Max({ x \in base..Max2(base, p.lap) :
            \A e \in (base + 1)..x : Cardinality(Confirmers(p, e, without)) >= quorum })

(* The watermarks move as far as the confirmations go, and never back. *)
Advance(p) ==
    LET moved == [p EXCEPT !.lac = Reach(p, @, AQ, {}),
                           !.lafr = IF Guaranteed THEN Reach(p, @, WQ, {}) ELSE @]
    IN [moved EXCEPT !.conf = [s \in Slots |-> { e \in moved.conf[s] : e > Settled(moved) }]]

Push(p, count) == [p EXCEPT !.lap = @ + count]

Held(slot, first, last) == { e \in first..last : Holds(slot, e) }

(* Queue rule 3: everything that is pending goes to a slot, in order, and nothing is left out. *)
MaySend(p, slot, first, last) ==
    /\ slot \notin p.failed \union p.replacing
    /\ last <= p.lap
    /\ Held(slot, first, p.sent[slot]) = {}
    /\ Held(slot, p.sent[slot] + 1, first - 1) = {}
    /\ Held(slot, first, last) # {}

(* Once all is sent, nothing is carried any more. *)
Sent(p, slot, last) ==
    [p EXCEPT !.sent[slot] = last,
              !.carried[slot] = IF Held(slot, last + 1, p.lap) = {} THEN None ELSE @]

AddOk(p, slot, first, last) ==
    IF slot \in p.replacing THEN p
    ELSE Advance([p EXCEPT !.conf[slot] = @ \union { e \in Held(slot, first, last) : e > Settled(p) }])

Fail(p, slot) ==
    [p EXCEPT !.failed = @ \union {slot},
              !.carried[slot] = IF slot \in p.replacing \/ slot \in p.failed THEN @ ELSE None]

(* A bookie is back: it is sent again all that it did not confirm. *)
Connect(p, slot) ==
    LET base == IF p.carried[slot] = None THEN Settled(p) ELSE p.carried[slot]
        sent == Max({ x \in base..Max2(base, p.lap) : Held(slot, base + 1, x) \subseteq p.conf[slot] })
    IN [p EXCEPT !.failed = @ \ {slot}, !.sent[slot] = sent]

(* A.4 rule 3, pinning: what the acknowledged entries of the new fragment need must stay. In the plain mode
   there are no such entries. *)
MayLeave(p, slots, full) ==
    IF full
    THEN \A s \in slots : \A e \in (Settled(p) + 1)..p.lac : Holds(s, e) => e \notin p.conf[s]
    ELSE Reach(p, Settled(p), AQ, slots) >= p.lac

(* The confirmations of those that leave stop counting before the metadata write is sent (T14, T15). *)
Strip(p, slots, carry) ==
    [p EXCEPT !.replacing = @ \union slots,
              !.conf = [s \in Slots |-> IF s \in slots THEN {} ELSE @[s]],
              !.carried = [s \in Slots |-> IF carry /\ s \in slots THEN Settled(p) ELSE @[s]]]

EnsembleWith(p, repl) == [s \in Slots |-> IF s \in DOMAIN repl THEN repl[s] ELSE p.ens[s]]

(* The new fragment starts after the newest settled entry. If the last one would own no entry then, it is
   overwritten. A fragment never starts before the one that it follows. *)
ChangedFragments(p, repl, frags) ==
    LET new == [first |-> Settled(p) + 1, ens |-> EnsembleWith(p, repl)]
    IN IF LastOf(frags).first = new.first
       THEN [frags EXCEPT ![Len(frags)] = new]
       ELSE Append(frags, new)

(* A change is in force: each new bookie is due everything from the start of the fragment on. *)
Install(p, repl, frags) ==
    LET gone == DOMAIN repl
    IN Advance([p EXCEPT
        !.ens = EnsembleWith(p, repl),
        !.tenure = [s \in Slots |-> IF s \in gone THEN @[s] + E ELSE @[s]],
        !.conf = [s \in Slots |-> IF s \in gone THEN {} ELSE @[s]],
        !.sent = [s \in Slots |-> IF s \in gone THEN LastOf(frags).first - 1 ELSE @[s]],
        !.failed = @ \ gone,
        !.replacing = @ \ gone,
        !.frags = frags])

(* A replacement is a bookie that is not in the ensemble, and sits in one slot. *)
IsReplacement(p, repl, full) ==
    /\ DOMAIN repl # {}
    /\ DOMAIN repl \subseteq p.failed \ p.replacing
    /\ \A s \in DOMAIN repl : repl[s] \in Bookies /\ ~IsMember(p, repl[s])
    /\ \A s, t \in DOMAIN repl : s # t => repl[s] # repl[t]
    /\ MayLeave(p, DOMAIN repl, full)
=============================================================================
