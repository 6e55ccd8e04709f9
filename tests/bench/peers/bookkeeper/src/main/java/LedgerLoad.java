import com.fasterxml.jackson.databind.ObjectMapper;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.util.Arrays;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;

/**
 * Keeps a window of entries of one ledger in flight, and times every acknowledgement.
 *
 * <p>{@code LedgerLoad init URI} makes a new cluster. {@code LedgerLoad URI V2 SIZE WINDOW WARM-UP SECONDS}
 * writes. It prints {@code begin} when the warm-up is over, and {@code end} with the figures as JSON. Then it
 * waits until its standard input ends.
 */
public final class LedgerLoad {
    private final WriteHandle ledger;
    private final ByteBuf payload;
    private final int window;
    private final Semaphore room;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private long[] latencies = new long[1 << 20];
    private int count;

    private LedgerLoad(WriteHandle ledger, int size, int window) {
        byte[] bytes = new byte[size];
        new Random(1).nextBytes(bytes);
        this.ledger = ledger;
        this.payload = Unpooled.unreleasableBuffer(Unpooled.directBuffer(size).writeBytes(bytes));
        this.window = window;
        this.room = new Semaphore(window);
    }

    /** Writes for this time, then waits until everything is acknowledged. */
    private double drive(double seconds) throws Exception {
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        while (System.nanoTime() < end && failure.get() == null) {
            room.acquire();
            long sent = System.nanoTime();
            ledger.appendAsync(payload.duplicate()).whenComplete((entry, error) -> {
                if (error == null) {
                    acknowledged(System.nanoTime() - sent);
                } else {
                    failure.compareAndSet(null, error);
                }
                room.release();
            });
        }
        room.acquire(window);
        room.release(window);
        if (failure.get() != null) {
            throw new IllegalStateException("an entry was not written", failure.get());
        }
        return (System.nanoTime() - began) / 1e9;
    }

    private synchronized void acknowledged(long nanoseconds) {
        if (count == latencies.length) {
            latencies = Arrays.copyOf(latencies, 2 * count);
        }
        latencies[count++] = nanoseconds;
    }

    private double percentileMs(double part) {
        return latencies[Math.min(count - 1, (int) (part * count))] / 1e6;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("init")) {
            ServerConfiguration server = new ServerConfiguration();
            server.setMetadataServiceUri(arguments[1]);
            if (!BookKeeperAdmin.initNewCluster(server)) {
                throw new IllegalStateException("no new cluster could be made");
            }
            System.exit(0);
        }
        ClientConfiguration client = new ClientConfiguration();
        client.setMetadataServiceUri(arguments[0]);
        client.setThrottleValue(0); // Without this, the client sends at most 5,000 entries a second.
        client.setUseV2WireProtocol(Boolean.parseBoolean(arguments[1]));
        // With a full window, the bookie that no acknowledgement waits for may fall behind by more than the
        // time-out of an add. Without this, the client then wants a fourth bookie, and the ledger fails.
        client.setDelayEnsembleChange(true);
        int size = Integer.parseInt(arguments[2]);
        int window = Integer.parseInt(arguments[3]);
        try (BookKeeper cluster = BookKeeper.newBuilder(client).build();
                WriteHandle ledger = cluster.newCreateLedgerOp()
                        .withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                        .withDigestType(DigestType.CRC32C).withPassword(new byte[0])
                        .execute().get()) {
            LedgerLoad load = new LedgerLoad(ledger, size, window);
            load.drive(Double.parseDouble(arguments[4]));
            load.count = 0;
            System.out.println("begin");
            System.out.flush();
            double seconds = load.drive(Double.parseDouble(arguments[5]));
            Arrays.sort(load.latencies, 0, load.count);
            System.out.println("end " + new ObjectMapper().writeValueAsString(Map.of(
                    "records", load.count,
                    "seconds", seconds,
                    "p50_ms", load.percentileMs(0.5),
                    "p99_ms", load.percentileMs(0.99))));
            System.out.flush();
            System.in.readAllBytes();
        }
        System.exit(0);
    }
}
