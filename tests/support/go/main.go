// RocketMQ's Go client: `shop` sends one message of each kind, then answers checks until its input ends; `points`
// is a simple consumer that receives each message twice, then a push one that fails once.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var endpoints, topic = os.Args[2], os.Args[3]

func must[T any](found T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return found
}

func check(err error) { must(0, err) }

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func message(body string) *rmq.Message {
	made := &rmq.Message{Topic: topic, Body: []byte(body)}
	made.SetTag("TagA")
	made.SetKeys("k1")
	return made
}

func shop() {
	answer := func(view *rmq.MessageView) rmq.TransactionResolution {
		fmt.Println("check", string(view.GetBody()), *view.GetTag())
		return rmq.COMMIT
	}
	checker := rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: answer})
	producer := must(rmq.NewProducer(config(""), checker, rmq.WithTopics(topic)))
	check(producer.Start())
	fifo, delayed := message("fifo"), message("delayed")
	fifo.SetMessageGroup("customer-4")
	delayed.SetDelayTimestamp(time.Now().Add(time.Hour))
	for _, each := range []*rmq.Message{message("normal"), fifo, delayed} {
		must(producer.Send(context.Background(), each))
	}
	transaction := producer.BeginTransaction()
	must(producer.SendWithTransaction(context.Background(), message("half"), transaction))
	check(transaction.Commit())
	fmt.Println("sent")
	io.Copy(io.Discard, os.Stdin)
	check(producer.GracefulStop())
}

func say(kind string, view *rmq.MessageView) bool {
	fmt.Println(kind, view.GetMessageId(), string(view.GetBody()), view.GetDeliveryAttempt())
	return view.GetDeliveryAttempt() == 1
}

func simple(count int) {
	subscriptions := map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}
	consumer := must(rmq.NewSimpleConsumer(
		config("simple"), rmq.WithSimpleAwaitDuration(5*time.Second), rmq.WithSimpleSubscriptionExpressions(subscriptions),
	))
	check(consumer.Start())
	for seen := 0; seen < 2*count; {
		found, _ := consumer.Receive(context.Background(), 16, 30*time.Second) // an error where no message came
		for _, view := range found {
			seen++
			if say("simple", view) {
				check(consumer.ChangeInvisibleDuration(view, time.Second))
			} else {
				check(consumer.Ack(context.Background(), view))
			}
		}
	}
	check(consumer.GracefulStop())
}

func push() {
	paid := rmq.NewFilterExpressionWithType("TAGS = 'paid'", rmq.SQL92)
	consume := func(view *rmq.MessageView) rmq.ConsumerResult {
		if say("push", view) {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	consumer := must(rmq.NewPushConsumer(
		config("push"), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: paid}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
	))
	check(consumer.Start())
	io.Copy(io.Discard, os.Stdin)
	check(consumer.GracefulStop())
}

func main() {
	if os.Args[1] == "shop" {
		shop()
		return
	}
	rmq.EnableSsl = false
	simple(must(strconv.Atoi(os.Args[4])))
	push()
}
