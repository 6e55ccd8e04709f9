package main

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type published struct {
	future jetstream.PubAckFuture
	at     time.Time
}

// driveNATS publishes to a stream with three replicas in files.
func driveNATS(addresses []string, payload []byte, window int) drive {
	connection, err := nats.Connect("nats://" + strings.Join(addresses, ",nats://"))
	check(err)
	stream, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(window))
	check(err)
	for deadline := time.Now().Add(time.Minute); ; { // The servers may not have elected a leader yet.
		_, err = stream.CreateStream(context.Background(), jetstream.StreamConfig{
			Name: "load", Subjects: []string{"load"}, Replicas: 3, Storage: jetstream.FileStorage,
		})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			check(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return func(deadline time.Time) []time.Duration {
		room := make(chan struct{}, window)
		flying := make(chan published, window)
		go func() {
			for time.Now().Before(deadline) {
				room <- struct{}{}
				at := time.Now()
				future, err := stream.PublishAsync("load", payload)
				check(err)
				flying <- published{future, at}
			}
			close(flying)
		}()
		var latencies []time.Duration
		for next := range flying {
			select {
			case <-next.future.Ok():
				latencies = append(latencies, time.Since(next.at))
			case err := <-next.future.Err():
				check(err)
			}
			<-room
		}
		return latencies
	}
}
