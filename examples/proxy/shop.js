// A service in node that knows nothing of Semel: every POST /payments is one more payment.
const http = require("node:http");

const payments = [];

const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    if (request.method === "POST" && request.url === "/payments") {
      payments.push({ amount: JSON.parse(Buffer.concat(pieces)).amount, operation: request.headers["semel-operation"] });
      response.writeHead(201, { "content-type": "application/json", location: `/payments/${payments.length}` });
      response.end(JSON.stringify({ id: payments.length }));
    } else if (request.method === "GET" && request.url === "/payments") {
      response.writeHead(200, { "content-type": "application/json" });
      response.end(JSON.stringify(payments));
    } else {
      response.writeHead(404).end();
    }
  });
});

const given = process.argv.indexOf("--port");
server.listen(given < 0 ? 3000 : Number(process.argv[given + 1]), "127.0.0.1", () => console.log(`port ${server.address().port}`));
