// Command load keeps a window of records in flight to a cluster of NATS, Redis or etcd, and times every
// acknowledgement.
//
//	load nats|redis|etcd ADDRESSES SIZE WINDOW WARM-UP SECONDS
//
// It prints "begin" when the warm-up is over, and "end" with the figures as JSON. Then it waits until its standard
// input ends.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A drive keeps the window full until the deadline, then waits until everything is acknowledged. It returns
// the time from sending to acknowledgement of each record.
type drive func(deadline time.Time) []time.Duration

func main() {
	log.SetFlags(0)
	if len(os.Args) != 7 {
		log.Fatal("usage: load nats|redis|etcd ADDRESSES SIZE WINDOW WARM-UP SECONDS")
	}
	addresses := strings.Split(os.Args[2], ",")
	payload := make([]byte, number(os.Args[3]))
	rand.New(rand.NewSource(1)).Read(payload)
	window := number(os.Args[4])
	var write drive
	switch os.Args[1] {
	case "nats":
		write = driveNATS(addresses, payload, window)
	case "redis":
		write = driveRedis(addresses[0], payload, window)
	case "etcd":
		write = driveEtcd(addresses, payload, window)
	default:
		log.Fatalf("%s is not a system", os.Args[1])
	}
	write(time.Now().Add(seconds(os.Args[5])))
	fmt.Println("begin")
	began := time.Now()
	latencies := write(began.Add(seconds(os.Args[6])))
	took := time.Since(began)
	slices.Sort(latencies)
	at := func(part float64) float64 {
		return latencies[min(len(latencies)-1, int(part*float64(len(latencies))))].Seconds() * 1000
	}
	figures, err := json.Marshal(map[string]any{
		"records": len(latencies), "seconds": took.Seconds(), "p50_ms": at(0.5), "p99_ms": at(0.99),
	})
	check(err)
	fmt.Printf("end %s\n", figures)
	io.Copy(io.Discard, os.Stdin)
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func seconds(text string) time.Duration {
	value, err := strconv.ParseFloat(text, 64)
	check(err)
	return time.Duration(value * float64(time.Second))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
