package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// driveEtcd puts keys, with a goroutine for each put of the window.
func driveEtcd(addresses []string, payload []byte, window int) drive {
	client, err := clientv3.New(clientv3.Config{Endpoints: addresses, DialTimeout: time.Minute})
	check(err)
	value := string(payload)
	for deadline := time.Now().Add(time.Minute); ; { // The servers may not have elected a leader yet.
		within, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err = client.Put(within, "load", "")
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			check(err)
		}
	}
	return func(deadline time.Time) []time.Duration {
		parts := make([][]time.Duration, window)
		var group sync.WaitGroup
		for worker := range window {
			group.Go(func() {
				key := "load/" + strconv.Itoa(worker) + "/"
				for n := 0; time.Now().Before(deadline); n++ {
					at := time.Now()
					_, err := client.Put(context.Background(), key+strconv.Itoa(n), value)
					check(err)
					parts[worker] = append(parts[worker], time.Since(at))
				}
			})
		}
		group.Wait()
		var latencies []time.Duration
		for _, part := range parts {
			latencies = append(latencies, part...)
		}
		return latencies
	}
}
