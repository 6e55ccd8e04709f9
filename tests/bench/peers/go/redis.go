package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// driveRedis adds to a stream over several connections. Each sends its part of the window and a WAIT 1 in one
// piece, and the next part when the WAIT says that a replica has it.
func driveRedis(address string, payload []byte, window int) drive {
	connections := min(4, window)
	parts := make([][]time.Duration, connections)
	clients := make([]net.Conn, connections)
	for i := range clients {
		for deadline := time.Now().Add(time.Minute); ; { // The server may not listen yet.
			var err error
			if clients[i], err = net.Dial("tcp", address); err == nil {
				break
			}
			if time.Now().After(deadline) {
				check(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	batch := window / connections
	add := fmt.Sprintf("*5\r\n$4\r\nXADD\r\n$4\r\nload\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%s\r\n", len(payload), payload)
	request := []byte(strings.Repeat(add, batch) + "*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$5\r\n60000\r\n")
	return func(deadline time.Time) []time.Duration {
		var group sync.WaitGroup
		for i, client := range clients {
			group.Go(func() { parts[i] = addBatches(client, request, batch, deadline) })
		}
		group.Wait()
		var latencies []time.Duration
		for _, part := range parts {
			latencies = append(latencies, part...)
		}
		return latencies
	}
}

func addBatches(client net.Conn, request []byte, batch int, deadline time.Time) []time.Duration {
	var latencies []time.Duration
	replies := bufio.NewReaderSize(client, 1<<16)
	line := func() string {
		text, err := replies.ReadString('\n')
		check(err)
		if text[0] == '-' {
			check(fmt.Errorf("redis: %s", text))
		}
		return text
	}
	for time.Now().Before(deadline) {
		at := time.Now()
		_, err := client.Write(request)
		check(err)
		for range batch {
			line() // The length of the id,
			line() // and the id.
		}
		if replicas := line(); replicas[:2] == ":0" {
			check(fmt.Errorf("redis: no replica has the records"))
		}
		took := time.Since(at)
		for range batch {
			latencies = append(latencies, took)
		}
	}
	return latencies
}
