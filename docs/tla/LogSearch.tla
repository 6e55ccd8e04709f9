------------------------------ MODULE LogSearch ------------------------------
(***************************************************************************)
(* Log.tla as a whole system that TLC can search, with a budget for        *)
(* everything that processes or nature may do.                             *)
(*                                                                         *)
(* Fewer states, and what it costs:                                        *)
(*   - what is due happens before anything else: a write is sent, an answer*)
(*     is heard, a useless ledger is deleted. An answer that comes late    *)
(*     does what one does that is given up before the store applies the    *)
(*     write;                                                              *)
(*   - a write that the store would refuse, and whose answer nobody waits  *)
(*     for, is dropped;                                                    *)
(*   - a truncation gives up all counted records.                          *)
(***************************************************************************)
EXTENDS Log, TLC

CONSTANTS
    Takeovers,    \* how often a process begins to take the log over, to lead it
    Seals,        \* ... to seal it
    Acceptances,  \* ... to count it, whatever was lost
    Records,      \* how many records are appended
    Rolls,        \* how often a leader wants to roll
    Endings,      \* how often a leader leaves in good order
    LostAnswers,  \* how often a process gives up waiting for the answer to its write
    Deaths,       \* how often one dies, is cancelled, or cannot reach the store
    Failures,     \* how often a ledger fails, or its end cannot be found out
    Truncations,
    Losses,       \* how often an operator accepts a loss for a ledger
    Requested,    \* how often somebody asks for a splice
    Withdrawals   \* how often somebody withdraws such a request

VARIABLE left     \* what is left of these

searchVars == <<vars, left>>

-----------------------------------------------------------------------------
AnswersHeard == { m \in msgs : m.type = "written" }
WritesDue == { p \in Processes : IsWriteDue(proc[p]) }
DeletionsDue == { l \in garbage : ~ledgers[l].deleted }
Useless == { m \in msgs : m.type = "write" /\ m.rec.version # rec.version + 1 /\ ~IsAwaited(m) }

Due ==
    IF Useless # {} THEN msgs' = msgs \ Useless /\ UNCHANGED <<rec, ledgers, proc, garbage>>
    ELSE IF AnswersHeard # {} THEN LET m == CHOOSE m \in AnswersHeard : TRUE IN Hears(m.to, m)
    ELSE IF WritesDue # {} THEN Writes(CHOOSE p \in WritesDue : TRUE)
    ELSE Deletes(CHOOSE l \in DeletionsDue : TRUE)

IsDue == Useless # {} \/ AnswersHeard # {} \/ WritesDue # {} \/ DeletionsDue # {}

Free == UNCHANGED left

Takes(what) == left[what] > 0 /\ left' = [left EXCEPT ![what] = @ - 1]

OpenListed == { rec.segs[i].l : i \in { i \in Listed : ~IsCounted(rec.segs[i]) } }
Requests == { l \in 1..Len(ledgers) : ledgers[l].request = "asked" }

ByOthers ==
    \/ \E m \in msgs : m.type = "write" /\ StoreApplies(m) /\ Free
    \/ rec.epoch > 0 /\ Takes("truncate") /\ Truncates(CountedEnd(rec))
    \/ Takes("losses") /\ \E l \in OpenListed : \E end \in NoEntry..(ledgers[l].pushed - 1) : AcceptsLoss(l, end)
    \/ rec.epoch > 0 /\ Takes("splices") /\ AsksForSplice(1)
    \/ \E l \in Requests : Takes("withdrawals") /\ Withdraws(l)
    \/ \E l \in Requests : Splices(l) /\ Free

InTakeover(p) ==
    LET x == proc[p]
    IN \/ TakeoverReads(p) /\ Free
       \/ /\ x.phase = "recovering"
          /\ LET l == ToRecover(x)
             IN \/ \E end \in Ends(ledgers[l]) : Recovers(p, l, end) /\ Free
                \/ \E end \in Ends(ledgers[l]) : StopsAtLoss(p, l, end, ledgers[l].first + end + 1) /\ Free
                \/ ledgers[l].deleted /\ GivesUp(p) /\ Free
       \/ Creates(p) /\ Free
       \/ Takes("crash") /\ GivesUp(p)
       \/ Takes("crash") /\ CannotWrite(p)

InLead(p) ==
    LET x == proc[p]
    IN \/ Takes("records") /\ Appends(p)
       \/ \E l \in Ledgers(x.current) \union Ledgers(x.draining) :
            \/ Confirms(p, l) /\ Free
            \/ FindsClosed(p, l) /\ Free
            \/ Takes("fail") /\ Fails(p, l)
       \/ ~x.wants /\ Takes("rolls") /\ WantsRoll(p)
       \/ ~x.asked /\ x.splice = <<>> /\ Requests # {} /\ SeesRequest(p) /\ Free
       \/ \E l \in Requests : Admits(p, l) /\ Free
       \/ Requests = {} /\ Admits(p, NoLedger) /\ Free
       \/ CreatesSpare(p) /\ Free
       \/ Closes(p) /\ Free
       \/ Takes("leaves") /\ Finishes(p)
       \/ Takes("crash") /\ Leaves(p)
       \/ (x.settling \/ rec.version # x.known[1].version) /\ LeaderReads(p) /\ Free

By(p) ==
    LET x == proc[p]
    IN \/ Takes("takeovers") /\ Begins(p, "lead")
       \/ Takes("seals") /\ Begins(p, "seal")
       \/ Takes("accepts") /\ Begins(p, "recover")
       \/ Takes("crash") /\ Crashes(p)
       \/ Takes("lost") /\ StopsWaiting(p)
       \/ IsTakingOver(x) /\ InTakeover(p)
       \/ x.phase = "leading" /\ InLead(p)
       \/ /\ x.phase = "resolving"
          /\ LET l == Head(x.toEnd)
             IN \/ ~ledgers[l].deleted /\ \E end \in Ends(ledgers[l]) : FindsEnd(p, l, end) /\ Free
                \/ ledgers[l].deleted /\ FindsEnd(p, l, None) /\ Free
                \/ Takes("fail") /\ FindsEnd(p, l, None)

SearchInit ==
    /\ Init
    /\ left = [takeovers |-> Takeovers, seals |-> Seals, accepts |-> Acceptances, records |-> Records,
               rolls |-> Rolls, leaves |-> Endings, lost |-> LostAnswers, crash |-> Deaths, fail |-> Failures,
               truncate |-> Truncations, losses |-> Losses, splices |-> Requested,
               withdrawals |-> Withdrawals]

SearchNext == IF IsDue THEN Due /\ Free ELSE ByOthers \/ \E p \in Processes : By(p)

SearchSpec == SearchInit /\ [][SearchNext]_searchVars

(* A search in which no second leader acknowledges anything shows little. *)
NeverTwoLeaders ==
    ~(\E i, j \in Listed : rec.segs[i].epoch < rec.segs[j].epoch /\ LedgerOf(i).acked > 0 /\ LedgerOf(j).acked > 0)

(* Rules that are missing: put in the place of the operators of these names, each must break an invariant. *)
TheLastOnly(x) ==
    LET open == OpenSegments(x.base[1])
    IN IF Len(x.counts) < Len(open) THEN Last(open).l ELSE NoLedger
NoneAgain(x) == [x EXCEPT !.base = <<rec>>, !.tried = <<>>, !.phase = "writing"]
AnyTime(x) == TRUE
WhateverIsConfirmed(sent, ds) == { i \in 1..Len(sent) : sent[i][2] < ds[sent[i][1]].confirmed }
SpareAnyway(x) == Ledgers(x.spare)
=============================================================================
