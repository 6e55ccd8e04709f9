------------------------------ MODULE Following ------------------------------
(***************************************************************************)
(* Following recorded runs, whatever they are of: the part that            *)
(* LedgerTrace.tla and LogTrace.tla share.                                 *)
(*                                                                         *)
(* `python -m tests.tla` writes the module Recorded with the runs. A run is*)
(* a sequence of steps. Each names the action that it must be, with all    *)
(* arguments (ev, ...), exactly the messages that it sends (out), and what *)
(* the program's state is after it (see). So at each point of a run at most*)
(* one step is possible. If none is, the run is refused, and TLC prints    *)
(* where.                                                                  *)
(***************************************************************************)
EXTENDS Recorded, Integers, Sequences, TLC

CONSTANT
    Explains   \* whether a run that is refused is to say why; without it TLC takes half the time

VARIABLES
    run,       \* which of the recorded runs this is
    at,        \* the next step
    verdict    \* "", "accepted" or "refused"

Steps == Runs[run]
IsOnItsWay == verdict = "" /\ at <= Len(Steps)

AtBeginning == run \in 1..Len(Runs) /\ at = 1 /\ verdict = ""

Advances ==
    /\ IsOnItsWay
    /\ at' = at + 1
    /\ UNCHANGED <<run, verdict>>

IsAccepted ==
    /\ verdict = "" /\ at = Len(Steps) + 1
    /\ PrintT(<<"accepted", run>>)
    /\ verdict' = "accepted"
    /\ UNCHANGED <<run, at>>

IsRefused(why) ==
    /\ PrintT(<<"refused", run, at, why>>)
    /\ verdict' = "refused"
    /\ UNCHANGED <<run, at>>
=============================================================================
